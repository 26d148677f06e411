"""Component qwen3_omni/thinker: turns text, audio, images and video into text."""
