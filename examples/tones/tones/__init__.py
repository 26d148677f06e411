"""A model family in its own package, with one stage, which plays a text as tones. docs/add-a-model.md explains it."""
