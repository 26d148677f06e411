"""Operators under test: real processes of `python -m omni_operator`, which tests can kill and restart."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import yaml

from support.controlplane.server.api import Api, eventually
from support.processes.forks import ForkedProgram, preload
from support.processes.polling import PATIENCE_S
from support.processes.process import ChildProcess, Running

_numbers = itertools.count()
# A restarted operator keeps its identity, like a container that restarts in its pod, and so keeps its own lease.
_IDENTITY = "operator-under-test"
preload("omni_operator.__main__")

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"
SYSTEM_NAMESPACE = "omnipipeline-system"
QUIET_ANSWERS = 12


class OperatorProcess:
    """`python -m omni_operator` on free ports. The context manager stops it at the end (SIGTERM)."""

    def __init__(
        self,
        kubeconfig: Path,
        directory: Path,
        *arguments: str,
        namespaces: Sequence[str] = (),
        identity: str = _IDENTITY,
        fork: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """The log and the address file are below `directory`.

        `fork` runs the same `main` in a fork, which starts in milliseconds. `environment` is added to the tests'
        environment.
        """
        number = next(_numbers)
        self._address_file = directory / f"operator-{number}.json"
        self.log = directory / f"operator-{number}.log"
        flags = ["--kubeconfig", str(kubeconfig), "--health-port=0", "--metrics-port=0"]
        flags += ["--address-file", str(self._address_file), "--identity", identity]
        flags += [part for namespace in namespaces for part in ("--namespace", namespace)]
        self.flags = [*flags, *arguments]
        command = [sys.executable, "-m", "omni_operator", *self.flags]
        added = {**os.environ, **(environment or {})}
        if fork:
            self.child: ChildProcess = _ForkedChild(self.flags, self.log, added)
        else:
            self.child = ChildProcess("operator", command, self.log, added)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, ready: bool = True) -> None:
        """Starts the operator. With `ready`, waits until its caches are filled."""
        self._address_file.unlink(missing_ok=True)
        self.child.start()
        if ready:
            self.child.wait_until(self.is_ready)

    def stop(self) -> int | None:
        """Sends SIGTERM, and SIGKILL after PATIENCE_S. Returns the exit status."""
        return self.child.stop()

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.child.kill()

    def is_ready(self) -> bool:
        """Returns whether /readyz answers 200."""
        return self.http("health", "/readyz")[0] == 200

    def metrics(self) -> dict[str, float]:
        """Returns the samples of /metrics by `name{labels}`."""
        status, text = self.http("metrics", "/metrics")
        if status != 200:
            raise AssertionError(f"/metrics answered {status}")
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def count_reconciles(self) -> float:
        """Returns how often this process has reconciled, over all pipelines."""
        return sum(v for k, v in self.metrics().items() if k.startswith("omni_operator_reconcile_total"))

    def count_writes(self) -> float:
        """Returns the number of this process's patches and deletes, of any result."""
        samples = self.metrics().items()
        calls = [(k, v) for k, v in samples if k.startswith("omni_operator_api_calls_total")]
        return sum(v for k, v in calls if 'verb="patch"' in k or 'verb="delete"' in k)

    def wait_reconciled(self, times: float = 1) -> None:
        """Waits until this process has reconciled at least `times` times, over all pipelines."""
        eventually(lambda: self.count_reconciles() >= times, why="the operator reconciles")

    def port(self, name: str) -> int:
        """Returns the `health` or `metrics` port. The operator must listen already."""
        return int(json.loads(self._address_file.read_text())[name])

    def http(self, port: str, path: str) -> tuple[int, str]:
        """Returns status and body of a GET on the health or metrics port; status 0 if there is no response."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port(port)}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, KeyError, ValueError):
            return 0, ""

    def rss_bytes(self) -> int:
        """Returns the resident memory in bytes."""
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Returns the CPU time so far in seconds, user and system."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _ForkedChild(ChildProcess):
    """Runs the operator's `main` in a fork of a server that has imported everything.

    The fork starts in milliseconds instead of seconds, which the crash tests need. Otherwise it behaves like a program
    that was started normally, also when it is killed.
    """

    def __init__(self, flags: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        super().__init__("operator", ["(forked)"], log, environment)
        self._flags = list(flags)

    def _spawn(self) -> Running:
        return ForkedProgram("omni_operator.__main__", self._flags, self.log, self._environment)


def grant_operator(api: Api) -> None:
    """Applies the shipped Roles, for an operator that runs in the client's namespace and serves it."""
    text = (MANIFESTS / "rbac" / "namespaced.yaml").read_text()
    for manifest in yaml.safe_load_all(text.replace(SYSTEM_NAMESPACE, api.namespace)):
        api.apply(manifest)


def grant_gateway(api: Api, namespace: str) -> None:
    """Grants the ServiceAccount `gateway` of a namespace the chart's rights in the client's namespace."""
    group, one = "rbac.authorization.k8s.io", {"name": "gateway"}
    rules = [
        {"apiGroups": ["omnipipeline.io"], "resources": ["omnipipelines"], "verbs": ["list", "watch"]},
        {"apiGroups": ["omnipipeline.io"], "resources": ["omnistages/scale"], "verbs": ["get", "patch"]},
    ]
    account = {"kind": "ServiceAccount", "name": "gateway", "namespace": namespace}
    role = {"kind": "Role", "name": "gateway", "apiGroup": group}
    api.apply({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": one, "rules": rules})
    api.apply(
        {"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": one, "subjects": [account], "roleRef": role}
    )


def wait_idle(operator: OperatorProcess, *, quiet_s: float = 1.5, timeout_s: float = PATIENCE_S) -> None:
    """Waits until the operator's count of patches and deletes has not changed for `quiet_s` and QUIET_ANSWERS of its
    answers: a slow machine gets longer."""
    last, since, answers = -1.0, time.monotonic(), 0

    def quiet() -> bool:
        nonlocal last, since, answers
        writes, answers = operator.count_writes(), answers + 1
        if writes != last:
            last, since, answers = writes, time.monotonic(), 0
        return time.monotonic() - since >= quiet_s and answers >= QUIET_ANSWERS

    eventually(quiet, timeout_s=timeout_s, why="the operator stops writing")
