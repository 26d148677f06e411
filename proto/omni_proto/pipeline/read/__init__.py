"""Reads a pipeline from text: strict YAML, the API server's checks without a server, errors that say what to do."""
