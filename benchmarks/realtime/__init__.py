"""Calls over /v1/realtime."""
