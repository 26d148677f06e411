"""A real scheduler's messages about pods that fit no node have the causes that the operator reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from omni_operator.reasons import Reason
from omni_operator.state.pod_causes import find_cause
from support.controlplane.control_plane import GPU, ControlPlane
from support.controlplane.server.api import Api, Manifest, eventually
from support.operator.pod_statuses import NOW, stage_of

pytestmark = pytest.mark.controlplane

LABEL = "example.com/messages"
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: ControlPlane) -> Iterator[None]:
    """Nodes that only this module's pods select: one free, one tainted, one cordoned.

    The scheduler gives one reason for each node, so messages about one of them also name the others.
    """
    control_plane.add_node("free", gpus=1, labels={LABEL: "free"})
    control_plane.add_node("tainted", gpus=1, labels={LABEL: "tainted"}, taints=[TAINT])
    control_plane.add_node("cordoned", gpus=1)
    # In one write, so that no pod finds the node before it is cordoned.
    cordon = {"metadata": {"labels": {LABEL: "cordoned"}}, "spec": {"unschedulable": True}}
    control_plane.admin.patch("Node", "cordoned", cordon)
    yield
    for name in ("free", "tainted", "cordoned"):
        control_plane.admin.delete("Node", name)


def build_pod(name: str, node: str, gpus: int = 0, **spec: Any) -> Manifest:
    limits = {"limits": {GPU: gpus}} if gpus else {}
    stage = {"name": "stage", "image": "x", "resources": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [stage], "nodeSelector": {LABEL: node}, **spec},
    }


def claim(name: str) -> list[Manifest]:
    return [{"name": "models", "persistentVolumeClaim": {"claimName": name}}]


ONE_EACH = {"labelSelector": {"matchLabels": {"app": "two"}}, "topologyKey": "kubernetes.io/hostname"}
PODS: dict[str, tuple[Manifest, Reason, str, str]] = {
    "selector": (build_pod("one", "nowhere"), Reason.UNSCHEDULABLE, "correct nodeSelector", "add nodes"),
    "taint": (build_pod("one", "tainted"), Reason.UNSCHEDULABLE, "add tolerations", "add nodes"),
    "cordon": (build_pod("one", "cordoned"), Reason.UNSCHEDULABLE, "kubectl uncordon", "add nodes"),
    "gpus": (build_pod("one", "free", gpus=2), Reason.UNSCHEDULABLE, "with 2 free GPUs", "podAffinity"),
    "affinity": (
        build_pod(
            "one", "free", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [ONE_EACH]}}
        ),
        Reason.UNSCHEDULABLE,
        "podAffinity",
        "lower resources",
    ),
    "spread": (
        build_pod(
            "one",
            "free",
            topologySpreadConstraints=[
                {
                    "maxSkew": 1,
                    "whenUnsatisfiable": "DoNotSchedule",
                    **ONE_EACH,
                    "topologyKey": "example.com/no-such-key",
                }
            ],
        ),
        Reason.UNSCHEDULABLE,
        "relax topology",
        "lower resources",
    ),
    "gate": (
        build_pod("one", "free", schedulingGates=[{"name": "example.com/quota"}]),
        Reason.UNSCHEDULABLE,
        "must remove them",
        "no node",
    ),
    "claim": (
        build_pod("one", "free", volumes=claim("missing")),
        Reason.VOLUME_NOT_BOUND,
        "create the claim",
        "nodes,",
    ),
    "unbound claim": (
        build_pod("one", "free", volumes=claim("unbound")),
        Reason.VOLUME_NOT_BOUND,
        "PersistentVolume or StorageClass",
        "add nodes",
    ),
}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_that_fits_no_node(api: Api, name: str) -> None:
    pod, reason, words, wrong = PODS[name]
    if name == "unbound claim":
        api.apply(build_claim("unbound", "ReadWriteOnce", storageClassName="none"))
    wait_cause(api, pod, reason, words, wrong)


def test_a_claim_that_one_pod_may_use(api: Api, control_plane: ControlPlane) -> None:
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{api.namespace}-once"},
        "spec": {
            "accessModes": ["ReadWriteOncePod"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": "",
            "csi": {"driver": "csi.example.com", "volumeHandle": "x"},
            "claimRef": {"namespace": api.namespace, "name": "once"},
        },
    }
    control_plane.admin.apply(volume)
    api.apply(build_claim("once", "ReadWriteOncePod", storageClassName="", volumeName=f"{api.namespace}-once"))
    eventually(lambda: api.get("PersistentVolumeClaim", "once")["status"].get("phase") == "Bound", why="bound")
    api.create(build_pod("first", "free", volumes=claim("once")))
    eventually(lambda: api.get("Pod", "first")["spec"].get("nodeName"), why="the first pod has a node")
    second = build_pod("second", "free", volumes=claim("once"))
    wait_cause(api, second, Reason.UNSCHEDULABLE, "strategy: Recreate")


def build_claim(name: str, mode: str, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}, **spec},
    }


def wait_cause(api: Api, pod: Manifest, reason: Reason, words: str, wrong: str = "nothing") -> None:
    """Creates a pod, and waits for a cause that has the words: at first the scheduler may know only some nodes."""
    name = api.create(pod)["metadata"]["name"]

    def explained() -> bool:
        cause = find_cause(stage_of(api.get("Pod", name)), NOW)
        assert cause is not None
        assert (cause.reason, words in cause.message, wrong in cause.message) == (reason, True, False), cause
        return True

    eventually(explained, why="the scheduler answered")
