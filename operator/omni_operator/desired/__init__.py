"""Desired state: pure builders from a pipeline to manifests, one kind of child a file. No client, no clock, no I/O."""

from omni_operator.desired.assemble import build_revision_set, build_shared

__all__ = ["build_revision_set", "build_shared"]
