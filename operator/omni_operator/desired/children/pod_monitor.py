"""PodMonitor of a revision, where the Prometheus operator's API exists: the metrics port of every stage."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_proto.pod_contract import METRICS_PORT_NAME, PIPELINE_LABEL, REVISION_LABEL, STAGE_LABEL

_LABELS = {"pipeline": PIPELINE_LABEL, "stage": STAGE_LABEL, "revision": REVISION_LABEL}
# podTargetLabels would name the label omnipipeline_io_pipeline instead of pipeline.
_RELABELINGS = [
    {
        "sourceLabels": [f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9]', '_', label)}"],
        "targetLabel": target,
        "action": "replace",
    }
    for target, label in _LABELS.items()
]


def build_pod_monitor(revision: str, owner: Owner, selected_by: Mapping[str, str]) -> Manifest:
    """Returns the revision's PodMonitor, with the labels by which a Prometheus selects it.

    Series carry the labels pipeline, stage and revision.
    """
    spec = {
        "selector": {"matchLabels": {PIPELINE_LABEL: owner.name, REVISION_LABEL: revision}},
        "podMetricsEndpoints": [{"port": METRICS_PORT_NAME, "relabelings": _RELABELINGS}],
    }
    labels = {**selected_by, **names.child_labels(owner.name, revision=revision)}
    return build_child("PodMonitor", names.revision_name(owner.name, revision), owner, labels, {"spec": spec})
