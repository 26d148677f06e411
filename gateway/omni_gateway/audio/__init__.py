"""Returned audio in the format that the request asked for, encoded while it streams."""
