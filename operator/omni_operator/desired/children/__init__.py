"""Builders of child objects, one kind a file."""
