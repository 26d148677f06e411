"""Checks what Ready and RolloutComplete claim against the objects of the simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping

from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.kinds import ChildKey, key_of
from omni_operator.names import entry_selector, stage_name, stage_selector
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import GRPC_PORT, REVISION_LABEL
from support.operator.simulated_api import is_ready
from support.operator.simulated_cluster import SimulatedCluster

ENTRIES = ("demo", "demo-headless")


def check_conditions(cluster: SimulatedCluster, specs: Mapping[str, OmniPipeline], target: str) -> None:
    """Raises AssertionError if the status claims more than a client gets. specs: by revision; target: of the spec.

    Ready=True: the stable Services lead to the entry stage of a revision, each of whose stages has a ready pod behind
    its Service. RolloutComplete: they select the target, and each of its children exists.
    """
    if cluster.condition("Ready")[0] == "True":
        _check_reachable(cluster, specs)
    if cluster.condition("Progressing") == ("False", "RolloutComplete"):
        _check_complete(cluster, specs[target], target)


def leads(service: Manifest) -> bool:
    """Returns whether clients find the port of the pods at a Service."""
    return any((one["port"], one["targetPort"]) == (GRPC_PORT, "grpc") for one in service["spec"]["ports"])


def is_held(child: Manifest) -> bool:
    """Returns whether a child is being deleted, but held by a finalizer."""
    return "deletionTimestamp" in child["metadata"]


def _check_reachable(cluster: SimulatedCluster, specs: Mapping[str, OmniPipeline]) -> None:
    for name in ENTRIES:
        service = cluster.children.get(ChildKey("Service", name))
        assert service is not None, f"Ready without Service {name}"
        assert not is_held(service), f"Ready while Service {name} is being deleted"
        revision = service["spec"]["selector"].get(REVISION_LABEL, "")
        assert service["spec"]["selector"] == entry_selector("demo", revision)
        assert cluster.endpoints()[name] > 0, f"Ready, but Service {name} leads nowhere"
        assert leads(service), f"Ready, but Service {name} has other ports"
        for stage in specs[revision].spec.stages:
            _check_stage(cluster, stage.name, revision)


def _check_stage(cluster: SimulatedCluster, stage: str, revision: str) -> None:
    name = stage_name("demo", stage, revision)
    service = cluster.children.get(ChildKey("Service", name))
    assert service is not None, f"Ready without Service {name}"
    assert service["spec"]["selector"] == stage_selector("demo", stage, revision), f"Service {name} selects others"
    assert leads(service), f"Ready, but Service {name} has other ports"
    pods = cluster.revision_pods(revision, stage)
    assert any(is_ready(pod) for pod in pods), f"Ready without a pod of {stage} ({revision})"


def _check_complete(cluster: SimulatedCluster, pipeline: OmniPipeline, target: str) -> None:
    owner = Owner("demo", "models", "0b1c")
    revision_set = build_revision_set(pipeline, target, first_replicas(pipeline), owner, BuildSettings())
    for key in map(key_of, [*build_shared(owner, target), *revision_set]):
        assert key in cluster.children, f"RolloutComplete without {key}"
        assert not is_held(cluster.children[key]), f"RolloutComplete while {key} is being deleted"
    for name in ENTRIES:
        selector = cluster.children[ChildKey("Service", name)]["spec"]["selector"]
        assert selector.get(REVISION_LABEL) == target, f"RolloutComplete, but Service {name} selects {selector}"
