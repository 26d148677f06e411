"""Turns codes into audio, chunk by chunk: the layers' state (state.py), the computation (decoder.py), the open streams
(pool.py)."""
