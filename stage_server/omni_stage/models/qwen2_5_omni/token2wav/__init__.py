"""Component qwen2_5_omni/token2wav: turns codec tokens into audio, with a diffusion model and a vocoder (wave/)."""
