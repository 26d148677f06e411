"""Qwen2.5-Omni's token2wav on this device: parity with transformers, attention, graphs, memory, speed."""
