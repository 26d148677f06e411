"""Capacity that follows load: what the pods report, how many pods that needs, and how fast their number may move."""
