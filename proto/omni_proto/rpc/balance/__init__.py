"""Which pod of a stage gets the next call."""
