"""Text that is spoken: sentences, and parts of a length that a pipeline can speak at once. Pure."""
