"""Builders of the parts of a stage's pod template."""
