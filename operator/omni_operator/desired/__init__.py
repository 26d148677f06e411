"""Desired state: pure functions that build manifests from a pipeline, without any I/O."""
