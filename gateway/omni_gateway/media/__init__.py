"""Converts media of requests to the formats that a stage accepts, and audio of answers to the requested format."""
