"""The engine's process: its environment, how it starts from a template, and how it ends with its parent."""
