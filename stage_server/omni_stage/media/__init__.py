"""Decodes images, audio and video to arrays. Imports no torch, gRPC or vLLM, so that decoding processes start fast."""
