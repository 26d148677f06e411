"""What the commands on a cluster share: the API server as plain JSON, forwarded ports, and metrics of pods."""
