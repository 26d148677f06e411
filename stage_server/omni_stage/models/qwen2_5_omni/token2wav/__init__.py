"""Component qwen2_5_omni/token2wav: codec tokens to audio, by diffusion (wave/) and a vocoder."""
