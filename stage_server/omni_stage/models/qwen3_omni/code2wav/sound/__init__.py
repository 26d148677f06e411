"""Codes to audio, chunk by chunk: the layers' state (state), the computation (decoder), the open streams (pool)."""
