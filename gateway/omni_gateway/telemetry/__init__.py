"""The gateway's metrics and traces."""
