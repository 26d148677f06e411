"""The small children, each with its builder. The Deployment and the NetworkPolicy have files of their own.

A changed stage file is a new ConfigMap, so during a rollout the old pods keep reading the file that they started with.
gRPC keeps one connection for many calls, so a stage's upstream balances its calls over the addresses of a headless
Service. Of the two stable Services, the one with the pipeline's name has a cluster IP, for clients that cannot balance
their calls themselves. The other is headless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from omni_kube.objects import Manifest, content_hash
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.metadata import build_child
from omni_operator.desired.revision import dump_spec
from omni_operator.desired.stage_build import CONFIG_KEY, StageBuild
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import (
    GRPC_PORT,
    GRPC_PORT_NAME,
    METRICS_PORT_NAME,
    PIPELINE_LABEL,
    REVISION_LABEL,
    STAGE_LABEL,
)


def build_config_map(build: StageBuild) -> Manifest:
    """Returns the stage's ConfigMap."""
    content = {"immutable": True, "data": {CONFIG_KEY: build.config_text}}
    return build_child("ConfigMap", build.config_map, build.owner, build.labels, content)


def build_entry_services(owner: Owner, serving: str | None, *, tls: bool = False) -> list[Manifest]:
    """Returns the stable Services of a pipeline. Without a serving revision they have no endpoints.

    tls: whether clients reach the serving revision over TLS.
    """
    selector = names.entry_selector(owner.name, serving)
    labels = names.child_labels(owner.name)
    return [
        build_child(
            "Service", names.headless_service_name(owner.name), owner, labels, {"spec": _headless_spec(selector, tls)}
        ),
        build_child(
            "Service",
            names.entry_service_name(owner.name),
            owner,
            labels,
            {"spec": {"selector": selector, "ports": _ports(tls)}},
        ),
    ]


def build_stage_service(build: StageBuild) -> Manifest:
    """Returns a stage's headless Service, by which its upstream stage of the same revision calls it.

    The entry stage has one too, although it has no upstream stage.
    """
    spec = _headless_spec(build.selector, tls=build.tls is not None)
    return build_child("Service", build.name, build.owner, build.labels, {"spec": spec})


def _headless_spec(selector: dict[str, str], tls: bool) -> Manifest:
    return {"clusterIP": "None", "selector": selector, "ports": _ports(tls)}


def _ports(tls: bool) -> list[Manifest]:
    return [
        {
            "name": GRPC_PORT_NAME,
            "port": GRPC_PORT,
            "targetPort": GRPC_PORT_NAME,
            "protocol": "TCP",
            # The protocol, for meshes and gateways: HTTP/2 without TLS, or TLS, which they must forward unchanged.
            "appProtocol": "https" if tls else "kubernetes.io/h2c",
        }
    ]


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


def build_service_account(owner: Owner) -> Manifest:
    """Returns the pipeline's ServiceAccount."""
    return build_child(
        "ServiceAccount",
        names.service_account_name(owner.name),
        owner,
        names.child_labels(owner.name),
        {"automountServiceAccountToken": False},
    )


def build_controller_revision(pipeline: OmniPipeline, revision: str, owner: Owner) -> Manifest:
    """Returns the snapshot of a pipeline whose images are set; its number is the pipeline's generation."""
    spec = dump_spec(pipeline)
    return build_child(
        "ControllerRevision",
        names.snapshot_name(owner.name, revision, content_hash(spec, names.CONTENT_HASH_LENGTH)),
        owner,
        names.child_labels(owner.name, revision=revision),
        {"revision": pipeline.metadata.generation, "data": {"spec": spec}},
    )


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
