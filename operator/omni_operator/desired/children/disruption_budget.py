"""PodDisruptionBudget: node drains evict at most one pod of a replicated stage at a time."""

from __future__ import annotations

from omni_kube.objects import Manifest
from omni_operator.desired.metadata import build_child
from omni_operator.desired.stage_build import StageBuild


def build_disruption_budget(build: StageBuild) -> Manifest | None:
    """Returns the stage's PodDisruptionBudget; None below two replicas, where it would protect nothing."""
    if build.replicas < 2:
        return None
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": build.selector},
        # A pod that is not ready serves no requests, so it must not block the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return build_child("PodDisruptionBudget", build.name, build.owner, build.labels, {"spec": spec})
