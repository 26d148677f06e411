"""What each of our processes needs, whichever command it runs: how it ends, its allocator, its protobuf."""
