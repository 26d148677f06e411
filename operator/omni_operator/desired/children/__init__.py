"""Builders of child objects, one file for each kind."""
