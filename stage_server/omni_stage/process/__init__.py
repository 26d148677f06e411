"""What every process of a stage server needs, whichever command it runs: termination, allocator, protobuf, logs."""
