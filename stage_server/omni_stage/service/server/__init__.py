"""The process of a stage server and its ports, from start to drain. Nothing here reads the content of requests."""
