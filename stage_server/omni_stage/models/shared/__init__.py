"""Code that model families share."""
