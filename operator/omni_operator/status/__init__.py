"""Reports to the user: conditions with reasons and remedies, and Events."""
