"""The process of a stage server and its ports, from start to drain. Nothing here knows what a request holds."""
