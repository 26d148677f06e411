"""Pods as processes: the pods that a real control plane schedules run as stage servers, at their own addresses.

A test in a network and mount namespace of its own (`enter`) has every address of POD_CIDR, and an /etc/hosts in which
`Kubelet` keeps the ready addresses of each Service, as the cluster's DNS would. Operators, gateways, stage servers and
clients then run unchanged: the operator reads port 9090 of each pod, stages call the names in their own stage files.

Not as in a cluster: no image, no probe (the stage server's own readiness counts), no NetworkPolicy, no cluster IP.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from support.controlplane.pipelines import STAGE_LABEL
from support.controlplane.pods import set_ready
from support.controlplane.server.api import Api, ApiError, Manifest
from support.processes.process import ENDS_WITH_PARENT

POD_CIDR = "10.244.0.0/16"
ANNOTATIONS = {"kwok.test/behaviour": "pending", "kwok.test/stop-after": "3600s"}
"""Annotations of pods that `Kubelet` runs, so that kwok leaves them alone."""
_INSIDE = "OMNI_TEST_POD_NETWORK"
_SETUP = (
    f"ip link set lo up && ip route add local {POD_CIDR} dev lo && "
    f'cat /etc/hosts > "${_INSIDE}" && mount --bind "${_INSIDE}" /etc/hosts && exec "$@"'
)


class PodNetworkError(RuntimeError):
    """This machine does not allow the namespaces that a network of pods needs."""


def run_inside(folder: Path, test: Path, *arguments: str, timeout_s: float) -> str:
    """Runs a test file in new namespaces. Returns the end of its output. Raises PodNetworkError, AssertionError."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    unshare = [*ENDS_WITH_PARENT, "unshare", "--net", "--mount", *user, "sh", "-c", _SETUP, "sh"]
    environment = {**os.environ, _INSIDE: str(folder / "hosts")}
    probe = subprocess.run([*unshare, "true"], env=environment, capture_output=True, text=True, check=False)
    if probe.returncode:
        raise PodNetworkError(probe.stderr)
    pytest = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *arguments, str(test)]
    done = subprocess.run(
        [*unshare, *pytest],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout[-20_000:]


@dataclass
class _Pod:
    name: str
    stage: str
    address: str
    process: subprocess.Popen[bytes]
    address_file: Path
    began: float
    ready_at: float | None = None
    """When the API server had its condition Ready, in seconds of a monotonic clock."""
    stopping: bool = False


class Kubelet:
    """Runs the scheduled pods of a namespace. Use as a context manager, inside `run_inside`."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._pods: dict[str, _Pod] = {}
        self._ended = threading.Event()
        self._number = 0
        self._hosts = Path(os.environ[_INSIDE])
        self._base = self._hosts.read_text()
        self.starts: list[tuple[str, float, float]] = []
        """Stage, start in seconds of a monotonic clock, and seconds until ready, of each pod that became ready."""
        self.named: dict[str, float] = {}
        """When a name first had each pod's address, in seconds of a monotonic clock."""
        self.failures: list[str] = []
        """Ends of stage servers that nobody asked for."""
        self.peak: dict[str, int] = {}
        """Largest number of pods of each stage at once."""

    def __enter__(self) -> Self:
        # Processes end with the thread that starts them. Names have one of their own, as starts would delay them.
        self._threads = [threading.Thread(target=self._run), threading.Thread(target=self._repeat, args=(self._name,))]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def count(self, stage: str = "") -> int:
        """Returns the number of processes, of one stage or of all."""
        return sum(not stage or pod.stage == stage for pod in list(self._pods.values()))

    def ready(self, stage: str) -> dict[str, float]:
        """Returns the address of each ready pod of a stage, and since when it is, in seconds of a monotonic clock."""
        pods = [pod for pod in list(self._pods.values()) if pod.stage == stage and not pod.stopping]
        return {pod.address: pod.ready_at for pod in pods if pod.ready_at is not None}

    def _run(self) -> None:
        try:
            self._repeat(self._step)
        finally:
            for pod in self._pods.values():
                pod.process.kill()
                pod.process.wait()

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self._ended.wait(0.1):
            try:
                step()
            except (ApiError, OSError) as error:
                sys.stderr.write(f"kubelet: {error}\n")

    def _step(self) -> None:
        live = {str(pod["metadata"]["uid"]): pod for pod in self._api.list("Pod") if pod["spec"].get("nodeName")}
        for uid, manifest in live.items():
            if uid not in self._pods and "deletionTimestamp" not in manifest["metadata"]:
                self._start(uid, manifest)
        for uid, pod in list(self._pods.items()):
            self._tend(uid, pod, live.get(uid))
        for stage in {pod.stage for pod in self._pods.values()}:
            self.peak[stage] = max(self.peak.get(stage, 0), self.count(stage))

    def _start(self, uid: str, manifest: Manifest) -> None:
        self._number += 1
        address = f"10.244.{200 + self._number // 250}.{self._number % 250 + 1}"
        config = yaml.safe_load(self._api.get("ConfigMap", _config_name(manifest))["data"]["stage.yaml"])
        config["listen"] = {**config.get("listen", {}), "host": address}
        folder = self._folder / f"pod-{self._number}"
        folder.mkdir()
        (folder / "stage.yaml").write_text(yaml.safe_dump(config))
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "omni_stage", "serve", "--config", str(folder / "stage.yaml")]
            process = subprocess.Popen(
                [*ENDS_WITH_PARENT, *command, "--address-file", str(folder / "address.json")],
                stdout=log,
                stderr=log,
                env={**os.environ, "GRPC_DNS_RESOLVER": "native", "OMNI_TERMINATION_LOG": str(folder / "end")},
            )
        metadata = manifest["metadata"]
        stage = metadata["labels"][STAGE_LABEL]
        self._pods[uid] = _Pod(metadata["name"], stage, address, process, folder / "address.json", time.monotonic())
        self._patch(metadata["name"], {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running"})

    def _tend(self, uid: str, pod: _Pod, manifest: Manifest | None) -> None:
        ended = pod.process.poll() is not None
        if manifest is None:
            pod.process.kill()
            del self._pods[uid]
        elif "deletionTimestamp" in manifest["metadata"]:
            if not pod.stopping:
                pod.stopping = True
                set_ready(self._api, manifest, ready=False)
                pod.process.send_signal(signal.SIGTERM)
            elif ended:
                self._api.call(
                    "DELETE", f"/api/v1/namespaces/{self._api.namespace}/pods/{pod.name}?gracePeriodSeconds=0"
                )
        elif ended:
            self.failures.append(f"{pod.name}: {pod.process.returncode}")
            set_ready(self._api, manifest, ready=False)
            del self._pods[uid]
        elif pod.ready_at is None and pod.address_file.exists():
            took = time.monotonic() - pod.began
            set_ready(self._api, manifest)
            pod.ready_at = time.monotonic()
            self.starts.append((pod.stage, pod.began, took))

    def _patch(self, name: str, status: Mapping[str, Any]) -> None:
        self._api.patch("Pod", name, {"status": dict(status)}, subresource="status")

    def _name(self) -> None:
        """Writes the ready addresses of each Service, as the cluster's DNS would answer."""
        lines = []
        for item in self._api.list("EndpointSlice"):
            service = (item["metadata"].get("labels") or {}).get("kubernetes.io/service-name")
            short = f"{service}.{self._api.namespace}.svc"
            for endpoint in item.get("endpoints") or ():
                if (endpoint.get("conditions") or {}).get("ready"):
                    names = f"{short} {short}.cluster.local {short}.cluster.local."
                    lines += [f"{address} {names}" for address in endpoint["addresses"]]
        text = "\n".join([self._base.rstrip(), *sorted(lines), ""])
        if text != self._hosts.read_text():
            # In place, because the file is mounted; and in one write, because others read it at any time.
            descriptor = os.open(self._hosts, os.O_WRONLY)
            try:
                os.ftruncate(descriptor, max(len(text.encode()), 1))
                os.pwrite(descriptor, text.encode(), 0)
            finally:
                os.close(descriptor)
            now = time.monotonic()
            for line in lines:
                self.named.setdefault(line.partition(" ")[0], now)


def _config_name(pod: Manifest) -> str:
    volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "config")
    return str(volume["configMap"]["name"])


def read_address(file: Path) -> dict[str, Any]:
    """Returns what a program wrote into its address file."""
    return dict(json.loads(file.read_text()))
