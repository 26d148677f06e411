"""Media of prompts inside of vLLM: videos with their audio."""
