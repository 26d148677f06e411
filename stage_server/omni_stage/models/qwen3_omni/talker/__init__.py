"""Component qwen3_omni/talker: turns the thinker's tokens into frames of codes."""
