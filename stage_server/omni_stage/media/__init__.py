"""Images and audio from bytes to arrays. Imports neither torch, gRPC nor vLLM: decoding processes start fast."""
