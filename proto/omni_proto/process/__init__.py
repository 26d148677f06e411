"""What every process sets up: logs, the allocator, and a collector of spans."""
