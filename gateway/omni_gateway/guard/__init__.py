"""The checks that a request passes before a route sees it: id, key, limits, and the size of its body."""
