"""What a request passes before a route sees it: its id, its key, its limits, the bounds of its body."""
