"""The operator as a process: settings, leadership, health, metrics and logs."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, wait_settled
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_server import ApiServer
from support.machine.sockets import list_listeners
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).resolve().parents[3]
CRD = "omnipipelines.omnipipeline.io"
CRDS = ROOT / "manifests" / "crd"
MakeOperator = Callable[..., OperatorProcess]
LEASE = "omnipipeline-operator"
QUICK_LEASE = "--lease-duration=3"


def run_operator(*flags: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `python -m omni_operator` until it exits."""
    command = [sys.executable, "-m", "omni_operator", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environ, check=False)


def leads(operator: OperatorProcess) -> bool:
    return operator.metrics()["omni_operator_leader"] == 1.0


def writes_of(operator: OperatorProcess) -> float:
    samples = operator.metrics()
    return sum(
        samples.get(f'omni_operator_api_calls_total{{code="{code}",verb="{verb}"}}', 0.0)
        for verb in ("patch", "delete")
        for code in ("200", "201")
    )


# Settings


def test_wrong_settings_end_it_with_a_line_that_says_what_is_wrong(tmp_path: Path) -> None:
    wrong = run_operator("--workers", "none")
    assert wrong.returncode == 78
    assert wrong.stderr == "omni_operator: --workers is 'none', but must be a number\n"
    unreadable = run_operator("--kubeconfig", str(tmp_path / "nothing"))
    assert unreadable.returncode == 78
    assert "cannot read the credentials of the API server" in unreadable.stderr


def test_a_port_that_is_taken_ends_it(api_server: ApiServer) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run_operator("--kubeconfig", str(api_server.kubeconfig), "--health-port", port)
    assert ended.returncode == 78
    assert f"port {port} cannot be bound" in ended.stderr


def test_it_waits_for_the_resource_and_stops_at_once_when_told(tmp_path: Path) -> None:
    """Without the CRD the operator is healthy but not ready. It becomes ready once the CRD is applied. If the CRD is
    deleted, it ends without a traceback, and its next process waits again."""
    with ApiServer(tmp_path / "bare") as server:
        operator = OperatorProcess(server.kubeconfig, tmp_path, fork=True)
        operator.start(ready=False)
        operator.child.wait_until(lambda: operator.http("health", "/readyz")[0] == 503)
        assert operator.http("health", "/healthz") == (200, "ok\n")
        eventually(lambda: "apply manifests/crd" in operator.log.read_text(), why="it says what it waits for")
        assert operator.stop() == 0
        operator.start(ready=False)
        for _ in range(2):
            server.apply_crds(*CRDS.glob("*.yaml"))
            operator.child.wait_until(operator.is_ready)
            server.admin.delete("CustomResourceDefinition", CRD)
            eventually(lambda: not server.admin.find("CustomResourceDefinition", CRD), why="the CRD is gone")
            eventually(lambda: not operator.child.running, why="it ends")
            assert operator.child.returncode == 75
            assert "Traceback" not in operator.log.read_text()
            operator.start(ready=False)
        operator.child.wait_until(lambda: operator.http("health", "/readyz")[0] == 503)
        assert operator.stop() == 0


# Leadership


def test_losing_the_lease_stops_writes_at_once(make_operator: MakeOperator, api: Api) -> None:
    operator = make_operator(QUICK_LEASE)
    with operator:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        # Another holder takes the lease for an hour, so the operator's next renewal fails.
        taken = {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}
        api.patch("Lease", LEASE, {"spec": taken})
        eventually(lambda: not leads(operator), why="the operator notices that it lost the lease")
        before = writes_of(operator)
        api.delete("Service", "omni")
        api.patch("OmniPipeline", "omni", {"spec": {"suspend": True}})
        eventually(lambda: api.find("Service", "omni") is None, stays_s=3.0, why="no operator recreates the Service")
        assert writes_of(operator) == before
        assert operator.http("health", "/healthz")[0] == 200
        api.delete("Lease", LEASE)
        eventually(lambda: api.find("Service", "omni"), why="healed after it leads again")


# Health, metrics, logs


def test_health_metrics_and_logs_of_a_pipeline(operator: OperatorProcess, api: Api) -> None:
    api.apply(build_pipeline())
    wait_settled(api)
    wait_idle(operator)
    assert operator.http("health", "/healthz") == (200, "ok\n")
    assert operator.http("health", "/readyz") == (200, "ok\n")
    assert operator.http("health", "/nonsense")[0] == 404
    listening = {one.port for one in list_listeners({operator.child.pid})}
    assert listening == {operator.port("health"), operator.port("metrics")}, "docs/security.md lists no other"
    samples = operator.metrics()
    assert samples['omni_operator_pipelines{ready="True"}'] == 1.0
    assert samples["omni_operator_reconcile_duration_seconds_count"] >= 2.0
    assert samples['omni_operator_reconcile_total{result="changed"}'] >= 1.0
    assert samples["omni_operator_noop_applies_total"] == 0.0
    eventually(lambda: operator.metrics()["omni_operator_queued_pipelines"] == 0.0)
    ages = {name: age for name, age in samples.items() if name.startswith("omni_operator_watch_age_seconds")}
    watched = {match[1] for name in ages if (match := re.search(r'watch="(\w+)/', name))}
    assert {"OmniPipeline", "Pod", "ReplicaSet", "EndpointSlice", "Deployment", "Service"} <= watched
    assert max(ages.values()) < 180.0

    lines = [json.loads(line) for line in operator.log.read_text().splitlines()]
    applied = [line for line in lines if line["message"].startswith("applied Deployment omni-thinker-")]
    assert applied
    subject = {"namespace": api.namespace, "name": "omni", "generation": 1}
    assert applied[0] | subject == applied[0]
    assert not [line for line in lines if line["level"] in ("ERROR", "CRITICAL")]


def test_a_pipeline_that_is_gone_is_counted_no_more(operator: OperatorProcess, api: Api) -> None:
    api.apply(build_pipeline())
    eventually(lambda: sum(_pipelines(operator).values()) == 1.0, why="counted")
    api.delete("OmniPipeline", "omni")
    eventually(lambda: sum(_pipelines(operator).values()) == 0.0, why="counted no more")


def _pipelines(operator: OperatorProcess) -> dict[str, float]:
    return {k: v for k, v in operator.metrics().items() if k.startswith("omni_operator_pipelines{")}
