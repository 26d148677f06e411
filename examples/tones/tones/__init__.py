"""A model family in a package of its own: a stage that plays a text as tones. docs/add-a-model.md explains it."""
