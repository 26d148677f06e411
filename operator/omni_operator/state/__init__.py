"""The observed state: the live objects of one pipeline, by revision and stage, and why pods do not run."""
