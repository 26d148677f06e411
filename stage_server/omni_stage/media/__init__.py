"""Images and sounds from bytes to arrays. Imports neither torch, gRPC nor vLLM: decoding processes start fast."""
