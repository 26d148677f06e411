"""Component qwen2_5_omni/talker: turns the thinker's rows into codec tokens in the chosen voice."""
