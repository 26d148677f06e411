"""Children without an owner (restored from a backup, or left by a deleted pipeline) are taken over by a pipeline."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_gateway.cluster.watch import read_pipelines
from omni_gateway.settings import GatewaySettings
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    CHILD_KINDS,
    PIPELINE_LABEL,
    build_two_stages,
    condition_of,
    list_children,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

OURS = f"{PIPELINE_LABEL}=omni"


def back_up(api: Api) -> list[Manifest]:
    """Returns the pipeline and its children as a backup restores them: without what the API server sets."""
    found = [item for kind in CHILD_KINDS for item in api.list(kind, labels=OURS)]
    return [restorable(item) for item in [*found, api.get("OmniPipeline", "omni")]]


def restorable(manifest: Manifest) -> Manifest:
    copied = copy.deepcopy(manifest)
    for name in ("uid", "resourceVersion", "ownerReferences", "creationTimestamp", "managedFields", "generation"):
        copied["metadata"].pop(name, None)
    del copied["metadata"]["namespace"]
    copied.pop("status", None)
    if copied["kind"] == "Service":
        for name in ("clusterIP", "clusterIPs"):
            if copied["spec"].get(name) not in ("None", ["None"]):
                copied["spec"].pop(name, None)
    return copied


def test_a_restored_namespace_is_taken_over(
    api: Api, operator: OperatorProcess, control_plane: ControlPlane, make_operator: Any
) -> None:
    """As Velero restores: every object in another namespace, without ownerReferences, the children first."""
    api.apply(
        build_two_stages(
            defaults={"image": "example.com/stage:1", "nodeSelector": {"kubernetes.io/hostname": "node-1"}}
        )
    )
    wait_settled(api)
    backup = back_up(api)
    expected = set(list_children(api))
    operator.stop()
    api.delete("OmniPipeline", "omni")
    eventually(lambda: not any(api.list(kind, labels=OURS) for kind in CHILD_KINDS), why="the original is gone")
    for manifest in backup:
        api.create(manifest)
    with make_operator() as second:
        wait_until_taken(api)
        assert set(list_children(api)) == expected
        wait_idle(second)
        eventually(
            lambda: (
                [one.accepts for one in read_pipelines([api.get("OmniPipeline", "omni")], GatewaySettings())] == [True]
            ),
            why="the gateway serves it",
        )
        # The fields are the operator's too: what the spec no longer has is removed.
        api.patch("OmniPipeline", "omni", {"spec": {"defaults": {"nodeSelector": None}}})
        eventually(
            lambda: all("nodeSelector" not in item["spec"]["template"]["spec"] for item in api.list("Deployment")),
            why="the node selector is gone",
        )


def wait_until_taken(api: Api) -> None:
    def owned() -> bool:
        pipeline = api.get("OmniPipeline", "omni")
        degraded = condition_of(pipeline, "Degraded")
        assert degraded.get("reason") != "ChildConflict", degraded
        children = [item for kind in CHILD_KINDS for item in api.list(kind, labels=OURS)]
        assert children
        others = [
            f"{item['kind']} {item['metadata']['name']}"
            for item in children
            if [owner["uid"] for owner in item["metadata"].get("ownerReferences", [])] != [pipeline["metadata"]["uid"]]
        ]
        assert not others, (others, degraded)
        return True

    eventually(owned, timeout_s=PATIENCE_S, why="every child is taken over")


def test_children_that_outlive_their_pipeline_serve_the_next_one(api: Api, operator: OperatorProcess) -> None:
    """kubectl delete --cascade=orphan, then apply: no pod restarts."""
    api.apply(build_two_stages())
    wait_settled(api)
    before = {pod["metadata"]["uid"] for pod in api.list("Pod")}
    api.delete("OmniPipeline", "omni", propagation="Orphan")
    eventually(lambda: api.find("OmniPipeline", "omni") is None)
    api.apply(build_two_stages())
    wait_settled(api)
    wait_until_taken(api)
    assert {pod["metadata"]["uid"] for pod in api.list("Pod")} == before


def test_what_the_operator_did_not_write_is_a_conflict_with_a_command(
    api: Api, operator: OperatorProcess, control_plane: ControlPlane
) -> None:
    ports = [{"port": 80}]
    for name in ("omni", "omni-headless"):
        labels = {PIPELINE_LABEL: "omni", "app.kubernetes.io/managed-by": "omnipipeline-operator"}
        metadata = {"name": name, "labels": labels}
        api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}})
    api.apply(build_two_stages())
    ready = wait_condition(api, "Ready", status="False", reason="ChildConflict")
    assert "Service omni was not made by the operator, and 1 more of the pipeline's names are taken" in ready["message"]
    _, _, command = ready["message"].partition("kubectl ")
    assert command == f"delete -n {api.namespace} service/omni service/omni-headless"
    control_plane.kubectl(*command.split())
    wait_settled(api)
