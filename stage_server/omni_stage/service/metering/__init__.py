"""Measurements: the stage's metrics, and the timing of each response."""
