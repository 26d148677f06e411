"""What a process of ours needs whichever command it runs: how it ends, its allocator, its protobuf."""
