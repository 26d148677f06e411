"""PodMonitor of a revision, where the Prometheus operator's API exists: the metrics port of every stage."""

from __future__ import annotations

from omni_operator import names
from omni_operator.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_operator.objects import Manifest


def build_pod_monitor(revision: str, owner: Owner) -> Manifest:
    """The revision's PodMonitor; series carry pipeline, stage and revision."""
    spec = {
        "selector": {"matchLabels": {names.PIPELINE_LABEL: owner.name, names.REVISION_LABEL: revision}},
        "podTargetLabels": [names.PIPELINE_LABEL, names.STAGE_LABEL, names.REVISION_LABEL],
        "podMetricsEndpoints": [{"port": names.METRICS_PORT_NAME}],
    }
    labels = names.child_labels(owner.name, revision=revision)
    return build_child("PodMonitor", names.revision_name(owner.name, revision), owner, labels, {"spec": spec})
