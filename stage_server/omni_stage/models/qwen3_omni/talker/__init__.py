"""The second stage: reads what the thinker wrote, writes frames of codes."""
