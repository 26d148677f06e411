"""Engines of stages: StageEngine and its vLLM implementation, the way of a request into it, and offline use.

Nothing is imported here: `arguments`, `sampling` and `protocol` stay free of vLLM.
"""
