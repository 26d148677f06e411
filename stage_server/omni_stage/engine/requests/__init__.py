"""One request, from what a caller says to what vLLM takes: checks, sampling, parts. Pure."""
