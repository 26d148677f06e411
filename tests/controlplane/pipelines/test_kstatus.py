"""What kstatus, the library of Flux and `helm --wait`, makes of a pipeline: its own code reads the live resource."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.controlplane.binaries import find_binaries
from support.controlplane.chains import gpu_pipeline
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import (
    build_pipeline,
    build_two_stages,
    condition_of,
    serving_revision,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.controlplane


def kstatus(api: Api, name: str = "omni") -> tuple[str, str]:
    """Returns the status (Current, InProgress, Failed, ...) and the message that kstatus computes."""
    document = json.dumps(api.get("OmniPipeline", name))
    done = subprocess.run(
        [find_binaries("kstatus")["kstatus"]], input=document, capture_output=True, text=True, check=True
    )
    status, _, message = done.stdout.rstrip("\n").partition("\t")
    return status, message


@pytest.fixture
def node(control_plane: ControlPlane, api: Api) -> Iterator[str]:
    """A node with the GPUs of one revision."""
    name = f"node-{api.namespace}"
    control_plane.add_node(name, gpus=3)
    yield name
    control_plane.admin.delete("Node", name)


def test_a_rollout_is_unfinished_until_it_is_finished(
    api: Api, make_operator: Callable[..., OperatorProcess], node: str
) -> None:
    api.apply(gpu_pipeline(node))
    assert kstatus(api)[0] == "InProgress", "no operator has seen it"
    with make_operator():
        wait_settled(api)
        eventually(lambda: kstatus(api)[0] == "Current")
        # The new revision does not fit beside the old one, which keeps serving.
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        assert kstatus(api)[0] == "InProgress"
        wait_condition(api, "Reconciling", status="True", reason="RolloutNeedsCapacity")
        assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True"
        status, message = kstatus(api)
        assert (status, "does not fit" in message or "capacity" in message) == ("InProgress", True), message
        api.apply(gpu_pipeline(node))
        wait_settled(api)
        eventually(lambda: kstatus(api)[0] == "Current", why="the edit was taken back")


def test_what_waits_for_a_person_has_failed(api: Api, operator: OperatorProcess) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "omni"}, "spec": {"ports": [{"port": 1}]}}
    api.create(service)
    api.apply(build_pipeline())
    wait_condition(api, "Stalled", status="True", reason="ChildConflict")
    assert not condition_of(api.get("OmniPipeline", "omni"), "Reconciling")
    status, message = kstatus(api)
    assert status == "Failed"
    assert "kubectl delete" in message
    api.delete("Service", "omni")
    wait_settled(api)
    eventually(lambda: kstatus(api)[0] == "Current")


def test_a_pipeline_that_sleeps_is_done(control_plane: ControlPlane, api: Api, operator: OperatorProcess) -> None:
    """One number puts all stages to sleep and wakes them, a new revision takes over without pods, and none of it is a
    failure."""
    pipeline = build_two_stages()
    for stage in pipeline["spec"]["stages"]:
        stage.pop("replicas", None)
        stage["scaling"] = {"minReplicas": 0, "maxReplicas": 3}
    api.apply(pipeline)
    wait_settled(api)

    def scale_entry(number: int) -> None:
        control_plane.kubectl("scale", "omnistage/omni-thinker", f"--replicas={number}", namespace=api.namespace)

    def pods() -> list[Manifest]:
        return [pod for pod in api.list("Pod") if "deletionTimestamp" not in pod["metadata"]]

    assert len(pods()) == 2
    scale_entry(0)
    wait_condition(api, "Ready", status="True", reason="Sleeping")
    eventually(lambda: not pods(), why="no pod is left")
    wait_settled(api)
    eventually(lambda: kstatus(api)[0] == "Current")
    eventually(lambda: api.get("OmniStage", "omni-talker")["spec"] == {"replicas": 0}, why="it follows the entry's")

    old = serving_revision(api)
    pipeline["spec"]["defaults"]["image"] = "example.com/stage:2"
    api.apply(pipeline)
    eventually(lambda: serving_revision(api) != old, why="the new revision takes over")
    wait_settled(api)
    assert not pods()
    assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["reason"] == "Sleeping"

    scale_entry(1)
    wait_condition(api, "Ready", status="True", reason="AllStagesReady")
    wait_settled(api)
    eventually(lambda: kstatus(api)[0] == "Current")
    eventually(lambda: len(pods()) == 2)
    warnings = [
        event["reason"]
        for event in api.list("Event")
        if event["involvedObject"]["kind"] == "OmniPipeline" and event["type"] == "Warning"
    ]
    assert warnings == []
