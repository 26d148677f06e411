"""One request, from the caller's input to vLLM's input: checks, sampling, parts. Pure."""
