"""What model families share: parts that hold no family's formula."""
