"""The messages of a call: reads the caller's messages, checks their order, and writes the responses."""
