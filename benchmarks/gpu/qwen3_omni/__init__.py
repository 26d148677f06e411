"""Checks of `make gpu` for Qwen3-Omni: codes of every codebook, code2wav's chunks, and the code predictor's cost."""
