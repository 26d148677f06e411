"""Operators under test: real processes of `python -m omni_operator`, killed and restarted at will."""

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

from support.controlplane.api import Api, eventually
from support.controlplane.process import ChildProcess, Running
from support.forks import ForkedProgram, preload

_numbers = itertools.count()
# The same holder after a restart, like a container that restarts in its pod: it need not wait for its own lease.
_IDENTITY = "operator-under-test"
preload("omni_operator.__main__")

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"
SYSTEM_NAMESPACE = "omnipipeline-system"


class OperatorProcess:
    """`python -m omni_operator` on free ports. As a context manager it is stopped (SIGTERM) at the end."""

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
        """Keeps its log and address file below `directory`. `fork`: the same `main`, but started in milliseconds.

        `environment` is added to that of the tests, of a program of its own.
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
        self.child = _ForkedChild(self.flags, self.log) if fork else ChildProcess("operator", command, self.log, added)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, ready: bool = True) -> None:
        """Start it; with `ready`, wait until its caches are filled."""
        self._address_file.unlink(missing_ok=True)
        self.child.start()
        if ready:
            self.child.wait_until(self.is_ready)

    def stop(self) -> int | None:
        """SIGTERM; the exit status."""
        return self.child.stop(timeout_s=20)

    def kill(self) -> None:
        """SIGKILL."""
        self.child.kill()

    def is_ready(self) -> bool:
        """Returns whether /readyz says so."""
        return self.http("health", "/readyz")[0] == 200

    def metrics(self) -> dict[str, float]:
        """Returns the samples of /metrics by `name{labels}`."""
        status, text = self.http("metrics", "/metrics")
        if status != 200:
            raise AssertionError(f"/metrics answered {status}")
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def wait_reconciled(self, times: float = 1) -> None:
        """Return once it has looked at pipelines `times` times in this life."""

        def reconciled() -> bool:
            samples = self.metrics().items()
            return sum(v for k, v in samples if k.startswith("omni_operator_reconcile_total")) >= times

        eventually(reconciled, why="the operator reconciles")

    def port(self, name: str) -> int:
        """Returns its `health` or `metrics` port, once it listens."""
        return int(json.loads(self._address_file.read_text())[name])

    def http(self, port: str, path: str) -> tuple[int, str]:
        """Status and body of a GET on its health or metrics port; status 0 when there is no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port(port)}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, KeyError, ValueError):
            return 0, ""

    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """CPU time so far, user and system."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _ForkedChild(ChildProcess):
    """Runs the operator's `main` in a fork of a server that has imported everything: it starts in milliseconds instead
    of seconds, which the crash tests need. Everything else is as with a program of its own, SIGKILL included."""

    def __init__(self, flags: Sequence[str], log: Path) -> None:
        super().__init__("operator", ["(forked)"], log)
        self._flags = list(flags)

    def _spawn(self) -> Running:
        return ForkedProgram("omni_operator.__main__", self._flags, self.log, os.environ)


def grant_operator(api: Api) -> None:
    """Apply the shipped Roles for an operator that serves the client's namespace and runs there."""
    text = (MANIFESTS / "rbac" / "namespaced.yaml").read_text()
    for manifest in yaml.safe_load_all(text.replace(SYSTEM_NAMESPACE, api.namespace)):
        api.apply(manifest)


def wait_idle(operator: OperatorProcess, *, quiet_s: float = 1.5, timeout_s: float = 60.0) -> None:
    """Return once its count of API writes has not changed for `quiet_s`."""
    last, since = -1.0, time.monotonic()

    def quiet() -> bool:
        nonlocal last, since
        writes = sum(
            value
            for name, value in operator.metrics().items()
            if name.startswith("omni_operator_api_calls_total") and any(v in name for v in ('"patch"', '"delete"'))
        )
        if writes != last:
            last, since = writes, time.monotonic()
        return time.monotonic() - since >= quiet_s

    eventually(quiet, timeout_s=timeout_s, why="the operator stops writing")
