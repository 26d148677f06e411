"""Autoregressive stages: vLLM's own V1 runner with rows in and rows out, and the check of compiled code."""
