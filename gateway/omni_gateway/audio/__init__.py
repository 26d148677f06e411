"""Encodes the returned audio in the requested format while it streams."""
