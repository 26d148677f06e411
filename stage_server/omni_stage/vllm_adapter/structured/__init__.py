"""Structured output in vLLM: what a request's parameters ask for, and the cost of each form in the engine's steps."""
