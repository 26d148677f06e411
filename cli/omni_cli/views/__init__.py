"""What the commands draw: the status of a pipeline, and the timeline of a request."""
