"""What model families share: parts that are specific to no family."""
