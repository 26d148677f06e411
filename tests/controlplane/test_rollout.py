"""Changes of revision with pods and limited GPUs: a chain never mixes revisions, and never lacks a link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from support.controlplane.api import Api, ApiError, Manifest, eventually
from support.controlplane.control_plane import GPU, ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import (
    PIPELINE_LABEL,
    REVISION_LABEL,
    STAGE_LABEL,
    build_pipeline,
    build_stage,
    condition_of,
    revisions,
    serving_revision,
    wait_condition,
    wait_settled,
)

pytestmark = pytest.mark.controlplane

STAGES = ("thinker", "talker", "token2wav")


def gpu_pipeline(node: str, image: str = "example.com/stage:1", **spec: Any) -> Manifest:
    """Returns three stages of one GPU each on one node; starting and ending take a while, as in life."""
    gpu = {"resources": {"limits": {GPU: 1}}}
    stages = [
        build_stage("thinker", outputs=["Text"], **gpu),
        build_stage("talker", after="thinker", **gpu),
        build_stage("token2wav", after="talker", outputs=["Audio"], **gpu),
    ]
    times = {"kwok.test/ready-after": "300ms", "kwok.test/stop-after": "500ms"}
    defaults = {"image": image, "nodeSelector": {"kubernetes.io/hostname": node}, "podAnnotations": times}
    return build_pipeline(stages=stages, defaults=defaults, **spec)


@pytest.fixture
def gpu_node(control_plane: ControlPlane, api: Api) -> Iterator[Callable[[int], str]]:
    """gpu_node(count) -> name of a node of the test's own."""
    name = f"node-{api.namespace}"

    def add(count: int) -> str:
        control_plane.add_node(name, gpus=count)
        return name

    yield add
    control_plane.admin.delete("Node", name)


class ChainWatcher:
    """Looks at the chains again and again: from each pod that takes clients' requests down to the last stage."""

    def __init__(self, api: Api, *, complete: bool) -> None:
        """complete: whether a chain must have all its links (not while Recreate starts the only set there is)."""
        self._api, self._complete = api, complete
        self.violations: list[str] = []
        self.served: list[str] = []

    def look(self) -> None:
        """One look. Upstream first, then downstream: a pod that ends in between was no link any more."""
        entry = self._api.get("Service", "omni")["spec"]["selector"]
        revision = entry[REVISION_LABEL]
        if not self.served or self.served[-1] != revision:
            self.served.append(revision)
        running = [pod for pod in self._api.list("Pod", labels=f"{PIPELINE_LABEL}=omni") if is_ready(pod)]
        targets = {d["metadata"]["name"]: d for d in self._api.list("ConfigMap", labels=f"{PIPELINE_LABEL}=omni")}
        endpoints = self._ready_endpoints()
        for pod in running:
            labels = pod["metadata"]["labels"]
            own = labels[REVISION_LABEL]
            if own != revision and "deletionTimestamp" not in pod["metadata"]:
                continue  # a set that does not serve yet, or not any more, and still stands complete
            target = downstream_target(pod, targets)
            if target is None:
                continue
            if f"-{own}." not in target:
                self.violations.append(f"{pod['metadata']['name']} of {own} calls {target}")
            service = target.removeprefix("dns:///").split(".")[0]
            if self._complete and not endpoints.get(service) and self._still_there(pod):
                self.violations.append(
                    f"{pod['metadata']['name']} calls {service}, which has no endpoints: {endpoints}"
                )

    def _ready_endpoints(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for item in self._api.list("EndpointSlice"):
            name = item["metadata"]["labels"]["kubernetes.io/service-name"]
            ready = [e for e in item.get("endpoints") or [] if e["conditions"].get("serving")]
            counts[name] = counts.get(name, 0) + len(ready)
        return counts

    def _still_there(self, pod: Manifest) -> bool:
        live = self._api.find("Pod", pod["metadata"]["name"])
        return live is not None and live["metadata"]["uid"] == pod["metadata"]["uid"]


def is_ready(pod: Manifest) -> bool:
    return condition_of(pod, "Ready").get("status") == "True"


def downstream_target(pod: Manifest, config_maps: dict[str, Manifest]) -> str | None:
    """Returns the address that a pod's stage file names, if its stage has a downstream."""
    for volume in pod["spec"]["volumes"]:
        name = volume.get("configMap", {}).get("name")
        if name in config_maps:
            (text,) = config_maps[name]["data"].values()
            for edge in yaml.safe_load(text).get("downstream") or []:
                target: str = edge["target"]
                return target
    return None


@contextmanager
def watching_chains(api: Api, *, complete: bool = True) -> Iterator[ChainWatcher]:
    """Yields a ChainWatcher that looks until the end of the block, which fails if it saw anything wrong.

    It looks before the block begins, all the time meanwhile, and once more after the block has ended.
    """
    watcher, done = ChainWatcher(api, complete=complete), threading.Event()

    def look() -> None:
        try:
            watcher.look()
        except (ApiError, KeyError) as error:
            watcher.violations.append(f"look failed: {error!r}")

    def run() -> None:
        while not done.wait(0.05):
            look()

    look()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watcher
    finally:
        done.set()
        thread.join()
    look()
    assert watcher.violations == []


def test_blue_green(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    node = gpu_node(6)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api) as watcher:
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        eventually(lambda: serving_revision(api) != old, timeout_s=60)
        wait_settled(api)
        assert revisions(api) == {serving_revision(api)}
    assert len(watcher.served) == 2


def test_the_old_set_ends_from_the_entry_down(
    api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
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
        eventually(lambda: len(gone) == 3, timeout_s=60)
    finally:
        stop.set()
        thread.join()
    assert gone == list(STAGES)


def test_no_room_for_a_second_set(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
    """The old set goes on serving, Progressing says why, and the rollout completes once there is room."""
    node = gpu_node(3)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api):
        api.apply(gpu_pipeline(node, image="example.com/stage:2"))
        progressing = wait_condition(api, "Progressing", status="True", reason="RolloutNeedsCapacity", timeout_s=60)
        assert "Recreate" in progressing["message"]
        assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True"
        assert serving_revision(api) == old
        control_plane.set_gpus(node, 6)
        eventually(lambda: serving_revision(api) != old, timeout_s=60)
        wait_settled(api)


def test_recreate_needs_no_room(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    node = gpu_node(3)
    recreate = {"rollout": {"strategy": "Recreate"}}
    api.apply(gpu_pipeline(node, **recreate))
    wait_settled(api)
    old = serving_revision(api)
    with watching_chains(api, complete=False):
        api.apply(gpu_pipeline(node, image="example.com/stage:2", **recreate))
        eventually(lambda: serving_revision(api) != old, timeout_s=60)
        wait_settled(api)
    assert revisions(api) == {serving_revision(api)}


def test_back_to_the_old_revision_midway(api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]) -> None:
    node = gpu_node(6)
    api.apply(gpu_pipeline(node))
    wait_settled(api)
    old, pods = serving_revision(api), {pod["metadata"]["uid"] for pod in api.list("Pod")}
    with watching_chains(api) as watcher:
        api.apply(gpu_pipeline(node, image="example.com/does-not-exist:2"))
        eventually(lambda: len(revisions(api)) == 2)
        api.apply(gpu_pipeline(node))
        eventually(lambda: revisions(api) == {old}, timeout_s=60)
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
        eventually(lambda: serving_revision(api) != old, timeout_s=60)
        wait_settled(api)
    assert len(watcher.served) == 2
    eventually(lambda: revisions(api) == {serving_revision(api)})


def test_a_compatible_change_rolls_in_place(
    api: Api, operator: OperatorProcess, gpu_node: Callable[[int], str]
) -> None:
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


def test_tls_replaces_the_pods_of_the_entry_alone(api: Api, operator: OperatorProcess) -> None:
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
    versions = {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in api.list("Deployment")}
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "omni-tls"},
            "stringData": {"tls.crt": "renewed", "tls.key": "renewed"},
        }
    )
    api.patch("OmniPipeline", "omni", {"metadata": {"labels": {"looked": "at"}}})
    wait_settled(api)
    assert versions == {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in api.list("Deployment")}
