"""Images and audio from bytes to arrays. Without torch, gRPC and vLLM, so that decoding processes start fast."""
