"""What is reported: conditions with reasons and remedies, and Events."""
