"""Desired state: pure functions that build manifests from a pipeline, one file for each kind, without any I/O."""

from omni_operator.desired.assemble import build_revision_set, build_shared

__all__ = ["build_revision_set", "build_shared"]
