"""Codes to sound, chunk by chunk: what layers remember (state), the computation (decoder), open sounds (pool)."""
