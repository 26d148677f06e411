"""What belongs to any call: its metadata, its deadline, the calls in flight, immediate start."""
