"""vLLM's parsers of replies, and the form of messages that a chat template reads."""
