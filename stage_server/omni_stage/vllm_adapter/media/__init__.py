"""Media of prompts in vLLM's processors and models: videos with their audio."""
