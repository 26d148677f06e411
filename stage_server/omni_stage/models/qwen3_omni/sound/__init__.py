"""Codes to sound, chunk by chunk: what every layer remembers (state), the computation (decoder), open streams (pool)."""
