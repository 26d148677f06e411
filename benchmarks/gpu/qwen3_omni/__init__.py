"""Checks of `make gpu` for Qwen3-Omni: codes of every codebook, code2wav's chunks, the code predictor's cost, and
rounding in the talker."""
