"""Capacity that follows load, over a simulated day."""
