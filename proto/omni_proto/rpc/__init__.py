"""What both clients and stages need to call a stage. `options` and `retry` decide without I/O."""
