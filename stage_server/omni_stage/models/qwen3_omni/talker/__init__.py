"""The second stage: reads the thinker's tokens, writes frames of codes."""
