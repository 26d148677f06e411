"""Runs the programs of the chart's pods as local processes, because kwok only sets the pods' status to Running.

The operator runs with the command, arguments, environment and ServiceAccount of its Deployment. The script of the
`helm test` pod runs against that process, and its exit code is written to the pod's status.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from support.controlplane.charts.helm import ROOT, operator_process
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.server.api import Api, Manifest
from support.processes.polling import PATIENCE_S

_OPERATORS = "labelSelector=app.kubernetes.io/name%3Domnipipeline-operator"
_TESTS = "labelSelector=app.kubernetes.io/name%3Domnipipeline-test"
# Pods of the Job in manifests/tiny. They succeed without running anything.
_MODELS = "labelSelector=app.kubernetes.io/name%3Dtiny-omni-model"
Name = tuple[str, str]


class OperatorPods:
    """Follows the operators' Deployments and test pods while commands run. The context manager kills the operators."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self._running: dict[Name, tuple[Manifest, OperatorProcess]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running.values():
            running[1].kill()
        self._running.clear()

    def run(
        self, command: str, environment: Mapping[str, str], timeout_s: float = 4 * PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command in the repository, as a user would.

        Kills it after `timeout_s`. Returns the ended process, with stdout and stderr together in `stdout`.
        """
        output = self._directory / "output"
        bash = shutil.which("bash") or "/bin/bash"
        with output.open("w") as written:
            process = subprocess.Popen(
                [bash, "-euo", "pipefail", "-c", command],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + timeout_s
        try:
            while process.poll() is None and time.monotonic() < deadline:
                self.step()
                time.sleep(0.3)  # each step lists three kinds of object
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.step()
        return subprocess.CompletedProcess(command, process.returncode, output.read_text())

    def step(self) -> None:
        """Starts, replaces or stops operators as their Deployments say, runs test pods' scripts and ends model pods."""
        wanted = {_name_of(item): item for item in self._list("/apis/apps/v1/deployments", _OPERATORS)}
        for name in [name for name in self._running if name not in wanted]:
            self._running.pop(name)[1].stop()
        for name, deployment in wanted.items():
            self._follow(name, deployment)
        for pod in self._list_running(_TESTS):
            self._end(pod, self._test(pod))
        for pod in self._list_running(_MODELS):
            self._end(pod, 0)

    def operator(self, namespace: str, name: str = "omnipipeline") -> OperatorProcess:
        """Returns the operator process of a Deployment."""
        return self._running[namespace, name][1]

    def _follow(self, name: Name, deployment: Manifest) -> None:
        template = deployment["spec"]["template"]["spec"]
        old = self._running.get(name)
        if old and old[0] == template:
            return
        if old:
            old[1].stop()
        command, environment = operator_process(deployment)
        if command[:3] != ["python", "-m", "omni_operator"]:
            raise AssertionError(f"{name}: {command}")
        kubeconfig = self._plane.kubeconfig_for_service_account(name[0], template["serviceAccountName"])
        directory = self._directory / "-".join(name)
        directory.mkdir(exist_ok=True)
        flags = (f"--lease-namespace={name[0]}", *command[3:])
        operator = OperatorProcess(kubeconfig, directory, *flags, fork=True, environment=environment)
        # Does not wait for readiness: an operator that lacks rights waits for them.
        operator.start(ready=False)
        self._running[name] = (template, operator)

    def _test(self, pod: Manifest) -> int:
        """Runs the pod's script, with the Service's address replaced by the process's. Returns the exit code."""
        namespace = pod["metadata"]["namespace"]
        release = pod["metadata"]["name"].removesuffix("-test")
        operator = self.operator(namespace, release)
        operator.child.wait_until(operator.is_ready)
        port = operator.port("metrics")
        (container,) = pod["spec"]["containers"]
        (script,) = container["args"]
        for old, new in ((f'"{release}-metrics", 9090', f'"127.0.0.1", {port}'), (":9090/", f":{port}/")):
            if old not in script:
                raise AssertionError(f"{old} is not in the test's script")
            script = script.replace(old, new)
        return subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S, check=False).returncode

    def _end(self, pod: Manifest, code: int) -> None:
        """Writes to the pod's status that it ended with this exit code."""
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
        statuses = [{**pod["status"]["containerStatuses"][0], "ready": False, "state": {"terminated": terminated}}]
        change: dict[str, Any] = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses}}
        api = self._plane.admin.in_namespace(pod["metadata"]["namespace"])
        api.patch("Pod", pod["metadata"]["name"], change, subresource="status")

    def _list_running(self, query: str) -> list[Manifest]:
        pods = self._list("/api/v1/pods", query)
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        return [pod for pod in running if "deletionTimestamp" not in pod["metadata"]]

    def _list(self, path: str, query: str) -> list[Manifest]:
        items: list[Manifest] = self._plane.admin.call("GET", f"{path}?{query}")["items"]
        return items


def _name_of(manifest: Manifest) -> Name:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def pod_uids(api: Api, labels: str = "omnipipeline.io/pipeline") -> set[str]:
    """Returns the uids of pipelines' pods, without those that are being deleted."""
    return {pod["metadata"]["uid"] for pod in api.list("Pod", labels) if "deletionTimestamp" not in pod["metadata"]}
