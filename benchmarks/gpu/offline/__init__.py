"""Runs vLLM's checks on a GPU machine that has torch and transformers, and neither vLLM nor a network (README.md)."""
