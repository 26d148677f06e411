"""Decodes images, audio and video to arrays. Without torch, gRPC and vLLM, so that decoding processes start fast."""
