"""Code with which both clients and stages call a stage: channels, retries, statuses.

`options`, `retry` and `rich_status` decide without I/O; `channels`, `pool` and `aio_status` hold gRPC's objects.
"""
