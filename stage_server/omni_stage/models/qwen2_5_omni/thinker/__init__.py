"""Component qwen2_5_omni/thinker: turns text, audio, images and video into text, and rows for the talker."""
