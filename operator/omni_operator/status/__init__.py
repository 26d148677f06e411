"""What is told: conditions with reasons and remedies, and Events."""
