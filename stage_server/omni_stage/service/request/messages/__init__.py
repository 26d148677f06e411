"""The messages of a call: reads those of the caller in their order, and writes the responses."""
