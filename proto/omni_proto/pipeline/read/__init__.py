"""From text to a pipeline: strict YAML, the API server's own checks without one, and errors that say what to do."""
