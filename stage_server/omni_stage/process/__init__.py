"""Process-wide settings of a stage server: termination, allocator, protobuf, logs, scheduling."""
