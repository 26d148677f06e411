"""Component qwen2_5_omni/talker: the thinker's rows to codec tokens in the chosen voice."""
