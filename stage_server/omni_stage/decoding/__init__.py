"""Decodes images, audio and video to arrays. Imports neither torch nor gRPC nor vLLM, so that processes that decode
start fast."""
