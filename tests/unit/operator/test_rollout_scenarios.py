"""Rollouts from beginning to end, as named scenarios over the simulated cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_operator.names import REVISION_LABEL
from omni_operator.objects import ChildKey
from support.operator_pipelines import make_stages
from support.simulated_cluster import BAD_IMAGE, SimulatedCluster, member_of


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


def image(name: str) -> dict[str, Any]:
    return {"image": name}


def test_first_creation() -> None:
    cluster = make_cluster()
    cluster.reconcile()
    target = cluster.selected()
    assert cluster.condition("Ready") == ("False", "StagesNotReady")
    assert cluster.condition("Progressing") == ("True", "Starting")
    children = cluster.writes
    cluster.settle()
    assert cluster.writes == children == len(cluster.children)
    assert cluster.revisions() == {target}
    assert cluster.condition("Ready") == ("True", "AllStagesReady")
    assert cluster.condition("Progressing") == ("False", "RolloutComplete")
    assert cluster.condition("Degraded") == ("False", "AsExpected")
    assert cluster.pipeline["status"]["readyStages"] == "3/3"
    assert [event.reason for event in cluster.events] == ["Starting", "AllStagesReady", "RolloutComplete"]
