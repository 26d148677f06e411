"""What `make gpu` checks of Qwen3-Omni alone: codes of every codebook, code2wav's chunks, the code predictor's cost."""
