"""Component qwen3_omni/code2wav: turns frames of codes into audio."""
