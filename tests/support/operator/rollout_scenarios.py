"""Sets up, steps and inspects scenarios on the simulated cluster."""

from __future__ import annotations

from typing import Any

from support.operator.operator_pipelines import make_stages
from support.operator.simulated_api import member_of
from support.operator.simulated_cluster import SimulatedCluster


def make_cluster(capacity: int | None = None, **spec: Any) -> SimulatedCluster:
    return SimulatedCluster(
        {
            "apiVersion": "omnipipeline.io/v1alpha1",
            "kind": "OmniPipeline",
            "metadata": {"name": "demo", "namespace": "models", "uid": "0b1c", "generation": 1},
            "spec": {
                "model": {"uri": "file:///models/tiny"},
                "defaults": {"image": "stage:1"},
                "stages": make_stages(),
                **spec,
            },
        },
        capacity=capacity,
    )


def settled(capacity: int | None = None, **spec: Any) -> SimulatedCluster:
    cluster = make_cluster(capacity, **spec)
    cluster.settle()
    cluster.events.clear()
    return cluster


def step(cluster: SimulatedCluster, *without: str) -> None:
    """Reconciles once and runs each step of the simulated cluster once, except the named steps."""
    cluster.reconcile()
    for name in cluster.STEPS:
        if name not in without:
            getattr(cluster, name)()


def replicas_of(cluster: SimulatedCluster, revision: str) -> dict[str, int]:
    return {
        member_of(child)[0]: child["spec"]["replicas"]
        for key, child in cluster.children.items()
        if key.kind == "Deployment" and member_of(child)[1] == revision
    }


def protocols_of(cluster: SimulatedCluster) -> dict[str, str]:
    """Returns Service -> the appProtocol of its port."""
    return {
        key.name: child["spec"]["ports"][0]["appProtocol"]
        for key, child in cluster.children.items()
        if key.kind == "Service"
    }


def told(cluster: SimulatedCluster) -> list[str]:
    return [event.reason for event in cluster.events]


def reasons(cluster: SimulatedCluster) -> tuple[str, str, str]:
    return tuple(cluster.condition(kind)[1] for kind in ("Ready", "Progressing", "Degraded"))  # type: ignore[return-value]
