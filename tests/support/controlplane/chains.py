"""Watches chains of stages in a control plane with limited GPUs: no chain may ever mix revisions or lack a stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from support.controlplane.control_plane import GPU
from support.controlplane.pipelines import PIPELINE_LABEL, REVISION_LABEL, build_pipeline, build_stage, condition_of
from support.controlplane.server.api import Api, ApiError, Manifest


def gpu_pipeline(node: str, image: str = "example.com/stage:1", **spec: Any) -> Manifest:
    """Returns a pipeline of three stages on one node, each with one GPU. Pods take a while to start and to end."""
    gpu: dict[str, Any] = {"resources": {"limits": {GPU: 1}}}
    stages = [
        build_stage("thinker", outputs=["Text"], **gpu),
        build_stage("talker", after="thinker", **gpu),
        build_stage("token2wav", after="talker", outputs=["Audio"], **gpu),
    ]
    times = {"kwok.test/ready-after": "300ms", "kwok.test/stop-after": "500ms"}
    defaults = {"image": image, "nodeSelector": {"kubernetes.io/hostname": node}, "podAnnotations": times}
    return build_pipeline(stages=stages, defaults=defaults, **spec)


class ChainWatcher:
    """Checks that each pod that may serve requests calls a stage of its own revision, and that the stage has endpoints.

    Such pods are Ready, and either belong to the revision that the entry's Service selects or are being deleted.
    `served` has the revisions that the entry's Service selected, in order. `violations` has what was wrong.
    """

    def __init__(self, api: Api, *, complete: bool) -> None:
        """`complete`: whether each called stage must have endpoints. It may have none during a Recreate rollout."""
        self._api, self._complete = api, complete
        self.violations: list[str] = []
        self.served: list[str] = []

    def look(self) -> None:
        """Checks all chains once.

        Reads the upstream pods first and the downstream endpoints after them. A pod that has ended in between is no
        violation.
        """
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
                continue  # this revision does not serve yet, or serves no longer and is not being deleted
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
    """Returns the first downstream address in a pod's stage file; None if the stage has no downstream."""
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
    """Yields a ChainWatcher that checks the chains before, during and once after the block.

    Raises AssertionError after the block if there was a violation.
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
