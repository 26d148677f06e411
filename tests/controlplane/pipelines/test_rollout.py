"""Changes of revision with limited GPUs: a chain of stages never mixes revisions, and only Recreate interrupts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from support.controlplane.chains import gpu_pipeline, watching_chains
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    REVISION_LABEL,
    STAGE_LABEL,
    build_pipeline,
    condition_of,
    revisions,
    serving_revision,
    wait_condition,
    wait_settled,
    written,
)
from support.controlplane.server.api import Api, eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

STAGES = ("thinker", "talker", "token2wav")


@pytest.fixture
def gpu_node(control_plane: ControlPlane, api: Api) -> Iterator[Callable[[int], str]]:
    """Yields gpu_node(count), which makes a node with `count` GPUs for this test and returns its name."""
    name = f"node-{api.namespace}"

    def add(count: int) -> str:
        control_plane.add_node(name, gpus=count)
        return name

    yield add
    control_plane.admin.delete("Node", name)


def test_blue_green(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    node = gpu_node(6)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api) as watcher:
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        eventually(lambda: serving_revision(api) != old, timeout_s=PATIENCE_S)
        wait_settled(api)
        assert revisions(api) == {serving_revision(api)}
    assert len(watcher.served) == 2


def test_the_old_set_ends_from_the_entry_down(
    api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
    """After a change of revision, the old pods end stage by stage, the entry first."""
    node = gpu_node(6)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    gone: list[str] = []
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            left = {pod["metadata"]["labels"][STAGE_LABEL] for pod in api.list("Pod", labels=f"{REVISION_LABEL}={old}")}
            gone.extend(stage for stage in STAGES if stage not in left and stage not in gone)
            stop.wait(0.03)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        eventually(lambda: len(gone) == 3, timeout_s=PATIENCE_S)
    finally:
        stop.set()
        thread.join()
    assert gone == list(STAGES)


def test_no_room_for_a_second_set(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
    """The old revision keeps serving, and the condition Progressing says that the rollout needs capacity.

    The rollout completes once enough GPUs are free.
    """
    node = gpu_node(3)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api):
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        progressing = wait_condition(
            api, "Progressing", status="True", reason="RolloutNeedsCapacity", timeout_s=PATIENCE_S
        )
        assert "Recreate" in progressing["message"]
        assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True"
        assert serving_revision(api) == old
        control_plane.set_gpus(node, 6)
        eventually(lambda: serving_revision(api) != old, timeout_s=PATIENCE_S)
        wait_settled(api)


def test_recreate_needs_no_room(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    """With Recreate, a change of revision needs no GPUs beyond those of one set of stages."""
    node = gpu_node(3)
    recreate = {"rollout": {"strategy": "Recreate"}}
    api.apply(gpu_pipeline(node, **recreate))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api, complete=False):
        api.apply(gpu_pipeline(node, image="example.com/stage:2", **recreate))
        eventually(lambda: serving_revision(api) != old, timeout_s=PATIENCE_S)
        wait_settled(api)
    assert revisions(api) == {serving_revision(api)}


def test_back_to_the_old_revision_midway(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    """If an edit is reverted during its rollout, the old pods stay and the new revision never serves."""
    node = gpu_node(6)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old, pods = serving_revision(api), {pod["metadata"]["uid"] for pod in api.list("Pod")}
    with watching_chains(api) as watcher:
        api.apply(gpu_pipeline(node, image="example.com/does-not-exist:2"))
        eventually(lambda: len(revisions(api)) == 2)
        api.apply(gpu_pipeline(node))
        eventually(lambda: revisions(api) == {old}, timeout_s=PATIENCE_S)
        wait_settled(api)
    assert watcher.served == [old]
    assert {pod["metadata"]["uid"] for pod in api.list("Pod")} >= pods


def test_a_broken_revision_never_serves(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    node = gpu_node(9)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api) as watcher:
        api.apply(gpu_pipeline(node, image="example.com/does-not-exist:2"))
        degraded = wait_condition(api, "Degraded", status="True", reason="ImagePullBackOff")
        assert "example.com/does-not-exist:2" in degraded["message"]
        assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True"
        api.apply(gpu_pipeline(node, image="example.com/stage:3"))
        eventually(lambda: serving_revision(api) != old, timeout_s=PATIENCE_S)
        wait_settled(api)
    assert len(watcher.served) == 2
    eventually(lambda: revisions(api) == {serving_revision(api)})


def test_a_compatible_change_rolls_in_place(
    api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
    """A new maxNumSeqs of the talker replaces only the talker's pod, within the revision."""
    node = gpu_node(4)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old, pods = serving_revision(api), {pod["metadata"]["uid"] for pod in api.list("Pod")}
    changed = gpu_pipeline(node)
    changed["spec"]["stages"][1]["engineArgs"] = {"maxNumSeqs": 4}
    with watching_chains(api) as watcher:
        api.apply(changed)
        eventually(lambda: len({pod["metadata"]["uid"] for pod in api.list("Pod")} - pods) == 1)
        wait_settled(api)
    assert watcher.served == [old]
    eventually(lambda: len({pod["metadata"]["uid"] for pod in api.list("Pod")} & pods) == 2)


def test_a_drained_node_is_a_loss_and_no_rollout(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
    """The status says what is missing: it does not take new pods for those of a first start."""
    node = gpu_node(3)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    pods = {pod["metadata"]["uid"] for pod in api.list("Pod")}
    control_plane.kubectl("drain", node, "--delete-emptydir-data", "--force")
    eventually(lambda: len({pod["metadata"]["uid"] for pod in api.list("Pod")} - pods) == 3)
    wait_idle(operator)
    wait_condition(api, "Degraded", status="True", reason="Unschedulable")
    wait_condition(api, "Progressing", status="False", reason="RolloutComplete")
    control_plane.kubectl("uncordon", node)
    wait_settled(api)


def test_tls_replaces_the_pods_of_the_entry_alone(api: Api, operator: OperatorProcess) -> None:
    """Enabling TLS replaces only the entry's pods. A Secret that is created later changes no Deployment."""
    api.apply(build_pipeline())
    before = wait_settled(api)
    revision, pods = serving_revision(api), {pod["metadata"]["name"] for pod in api.list("Pod")}
    api.patch("OmniPipeline", "omni", {"spec": {"entry": {"tls": {"secretName": "omni-tls"}}}})
    after = wait_settled(api)
    assert (before["status"]["url"], after["status"]["url"]) == (
        f"grpc://omni.{api.namespace}.svc:50051",
        f"grpcs://omni.{api.namespace}.svc:50051",
    )
    assert revisions(api) == {revision}

    def only_the_entry_changed() -> bool:
        gone = pods - {pod["metadata"]["name"] for pod in api.list("Pod")}
        return {name.split("-")[1] for name in gone} == {"thinker"}

    eventually(only_the_entry_changed)
    (thinker,) = api.list("Pod", labels=f"{STAGE_LABEL}=thinker")
    (volume,) = [volume["secret"] for volume in thinker["spec"]["volumes"] if "secret" in volume]
    assert (volume["secretName"], volume["optional"]) == ("omni-tls", True)
    ports = [service["spec"]["ports"][0]["appProtocol"] for service in api.list("Service")]
    assert sorted(ports) == ["https"] * 3 + ["kubernetes.io/h2c"] * 2
    deployments, reconciles = written(api), operator.count_reconciles()
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "omni-tls"},
            "stringData": {"tls.crt": "renewed", "tls.key": "renewed"},
        }
    )
    api.patch("OmniPipeline", "omni", {"metadata": {"labels": {"looked": "at"}}})
    operator.wait_reconciled(reconciles + 1)
    assert written(api) == deployments
