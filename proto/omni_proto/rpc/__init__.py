"""What everybody shares who calls a stage, clients and stages alike: channels, retries, statuses.

`options`, `retry` and `rich_status` decide without I/O; `channels`, `pool` and `aio_status` hold gRPC's objects.
"""
