"""Component qwen2_5_omni/thinker: text, audio and images to text, and rows for the talker."""
