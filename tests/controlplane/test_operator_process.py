"""The operator as a process: settings, leadership, health, metrics, logs, and the rights that it uses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane.api import Api, ApiError, Manifest, eventually
from support.controlplane.api_server import ApiServer
from support.controlplane.control_plane import ControlPlane
from support.controlplane.fault_proxy import FaultProxy, parse_path
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, build_stage, list_children, stage_of, wait_settled

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "manifests" / "crd"
MakeOperator = Callable[..., OperatorProcess]
LEASE = "omnipipeline-operator"
QUICK_LEASE = "--lease-duration=3"


def run_operator(*flags: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m omni_operator` to its end."""
    command = [sys.executable, "-m", "omni_operator", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)


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
    assert wrong.stderr.startswith("omni_operator: argument --workers: invalid int value: 'none'")
    assert len(wrong.stderr.splitlines()) == 1
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
    with ApiServer(tmp_path / "bare") as server:
        operator = OperatorProcess(server.kubeconfig, tmp_path, fork=True)
        operator.start(ready=False)
        operator.child.wait_until(lambda: operator.http("health", "/readyz")[0] == 503)
        assert operator.http("health", "/healthz") == (200, "ok\n")
        eventually(lambda: "apply manifests/crd" in operator.log.read_text(), why="it says what it waits for")
        assert operator.stop() == 0
        operator.start(ready=False)
        server.apply_crds(*CRDS.glob("*.yaml"))
        operator.child.wait_until(operator.is_ready)
        assert operator.stop() == 0


# Leadership


def test_of_two_operators_one_writes_and_the_other_takes_over(make_operator: MakeOperator, api: Api) -> None:
    first = make_operator(QUICK_LEASE, identity="first")
    second = make_operator(QUICK_LEASE, identity="second")
    first.start()
    eventually(lambda: leads(first), why="the first leads")
    second.start()
    api.apply(build_pipeline())
    wait_settled(api)
    wait_idle(first)
    assert not leads(second)
    assert writes_of(second) == 0.0, "caches warm, no write"
    before = api.get("OmniPipeline", "omni")["metadata"]["resourceVersion"]

    first.kill()
    eventually(lambda: leads(second), timeout_s=30, why="the second takes over once the lease has run out")
    eventually(lambda: second.metrics()["omni_operator_reconcile_duration_seconds_count"] >= 1, why="it has looked")
    wait_idle(second)
    assert writes_of(second) == 0.0, "it finds what it would have made itself"
    assert api.get("OmniPipeline", "omni")["metadata"]["resourceVersion"] == before
    api.delete("Service", "omni")
    eventually(lambda: api.find("Service", "omni"), why="healed by the second")

    first.start()
    assert second.stop() == 0
    eventually(lambda: leads(first), timeout_s=30, why="a lease that was given up is free at once")
    holder = api.get("Lease", LEASE)["spec"]["holderIdentity"]
    assert holder == "first"


def test_losing_the_lease_stops_writes_at_once(make_operator: MakeOperator, api: Api) -> None:
    operator = make_operator(QUICK_LEASE)
    with operator:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        # Somebody else holds it from now on, and goes on saying so: the operator's next renewal fails.
        taken = {"holderIdentity": "somebody", "leaseDurationSeconds": 3600}
        api.patch("Lease", LEASE, {"spec": taken})
        eventually(lambda: not leads(operator), why="it notices")
        before = writes_of(operator)
        api.delete("Service", "omni")
        api.patch("OmniPipeline", "omni", {"spec": {"suspend": True}})
        eventually(lambda: api.find("Service", "omni") is None, stays_s=3.0, why="nobody writes")
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
    samples = operator.metrics()
    assert samples['omni_operator_pipelines{ready="True"}'] == 1.0
    assert samples["omni_operator_reconcile_duration_seconds_count"] >= 2.0
    assert samples['omni_operator_reconcile_total{result="changed"}'] >= 1.0
    assert samples["omni_operator_noop_applies_total"] == 0.0
    assert samples["omni_operator_queue_length"] == 0.0
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
    return {k: v for k, v in operator.metrics().items() if k.startswith("omni_operator_pipelines")}


def test_a_stopped_process_that_wakes_up_goes_on(operator: OperatorProcess, api: Api) -> None:
    api.apply(build_pipeline())
    wait_settled(api)
    operator.child.send(signal.SIGSTOP)
    api.delete("Service", "omni")
    operator.child.send(signal.SIGCONT)
    eventually(lambda: api.find("Service", "omni"), why="healed")


# Rights


class GuardedControlPlane(ControlPlane):
    """Also asks whether who writes an ownerReference that blocks a deletion may do so, as OpenShift does."""

    def _api_server_flags(self, etcd: str, port: int) -> list[str]:
        plugin = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
        return [*super()._api_server_flags(etcd, port), plugin]


@pytest.fixture(scope="module")
def guarded_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with GuardedControlPlane(tmp_path_factory.mktemp("guarded")) as plane:
        plane.apply_crds(*sorted(CRDS.glob("*.yaml")))
        plane.admin.apply(POD_MONITOR_CRD)
        yield plane


POD_MONITOR_CRD: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"plural": "podmonitors", "singular": "podmonitor", "kind": "PodMonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
SYSTEM = "omnipipeline-system"
Right = tuple[str, str, str]


def rights_in(documents: list[Manifest]) -> set[Right]:
    """(group, resource, verb) that the roles grant."""
    return {
        (group, resource, verb)
        for document in documents
        if document["kind"] in ("Role", "ClusterRole")
        for rule in document["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rights_used(proxy: FaultProxy) -> set[Right]:
    """(group, resource, verb) of the calls that came; an apply that created needed the right to create too."""
    used: set[Right] = set()
    for call in proxy.calls:
        group, resource, _ = parse_path(call.path)
        if not resource.startswith("/"):  # discovery
            used.add((group, resource, call.verb))
            if call.verb == "patch" and call.status == 201:
                used.add((group, resource, "create"))
    return used


@pytest.mark.parametrize("install", ["namespaced", "cluster"])
def test_the_shipped_roles_grant_what_is_used_and_no_more(
    guarded_plane: ControlPlane, tmp_path: Path, install: str
) -> None:
    text = (ROOT / "manifests" / "rbac" / f"{install}.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document]
    if guarded_plane.admin.find("Namespace", SYSTEM) is None:
        guarded_plane.create_namespace(SYSTEM)
    api = guarded_plane.admin.in_namespace(SYSTEM)
    for document in documents:
        api.apply(document)
    with FaultProxy(guarded_plane) as proxy:
        kubeconfig = guarded_plane.kubeconfig_for_service_account(SYSTEM, LEASE, server=proxy.url)
        namespaces = [SYSTEM] if install == "namespaced" else []
        flags = ("--lease-namespace", SYSTEM, "--resync", "2")
        with OperatorProcess(kubeconfig, tmp_path, *flags, namespaces=namespaces, fork=True) as operator:
            _live_a_whole_life(api, operator)
        assert operator.child.returncode == 0
        refused = [(call.verb, call.path) for call in proxy.calls if call.status in (401, 403)]
        assert not refused
        used = rights_used(proxy)
    for document in documents:
        if document["kind"] != "ServiceAccount":
            api.delete(document["kind"], document["metadata"]["name"], document["metadata"].get("namespace"))
    # Admission asks for it, not a call: the next test shows that it is needed.
    implied = {("omnipipeline.io", "omnipipelines/finalizers", "update")}
    assert used == rights_in(documents) - implied


def _live_a_whole_life(api: Api, operator: OperatorProcess) -> None:
    """Have an operator do everything that it ever does."""
    stages = [build_stage("thinker", outputs=["Text"], replicas=2), build_stage("talker", after="thinker", replicas=2)]
    pipeline = api.apply(build_pipeline(stages=stages))
    wait_settled(api)
    assert api.list("PodMonitor")
    changed = build_pipeline(stages=stages)
    stage_of(changed, "thinker")["engineArgs"] = {"dtype": "float32"}
    api.apply(changed)
    wait_settled(api)
    for kind in ("Deployment", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"):
        left = [item for item in api.list(kind) if _is_owned(item, pipeline)]
        assert left
    eventually(lambda: len({_revision(item) for item in api.list("Deployment")}) == 1, why="the old set is pruned")
    eventually(lambda: len(api.list("PodMonitor")) == 1, why="and its PodMonitor")
    # The children of the whole pipeline are pruned only when somebody adds one of that kind.
    for kind, spec in (("ServiceAccount", {}), ("Service", {"spec": {"clusterIP": "None", "ports": [{"port": 1}]}})):
        api.create(
            {
                "apiVersion": "v1",
                "kind": kind,
                "metadata": {
                    "name": "surplus",
                    "labels": {"omnipipeline.io/pipeline": "omni"},
                    "ownerReferences": api.get("Service", "omni")["metadata"]["ownerReferences"],
                },
                **spec,
            }
        )
        eventually(lambda kind=kind: api.find(kind, "surplus") is None, why=f"surplus {kind} is pruned")
    wait_idle(operator)
    api.delete("OmniPipeline", "omni")
    eventually(lambda: not api.list("Deployment"), why="collected")


def _is_owned(item: Manifest, pipeline: Manifest) -> bool:
    owners = item["metadata"].get("ownerReferences", [])
    return pipeline["metadata"]["uid"] in [owner["uid"] for owner in owners]


def _revision(item: dict[str, Any]) -> str:
    return str(item["metadata"]["labels"]["omnipipeline.io/revision"])


def test_finalizers_are_asked_for_by_admission(guarded_plane: ControlPlane, tmp_path: Path) -> None:
    text = (ROOT / "manifests" / "rbac" / "namespaced.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document]
    api = guarded_plane.create_namespace("without-finalizers")
    for document in documents:
        document["metadata"]["namespace"] = api.namespace
        for subject in document.get("subjects", ()):
            subject["namespace"] = api.namespace
        document["rules"] = [
            rule for rule in document.get("rules", ()) if rule["resources"] != ["omnipipelines/finalizers"]
        ]
        api.apply({key: value for key, value in document.items() if key != "rules" or document["kind"] == "Role"})
    kubeconfig = guarded_plane.kubeconfig_for_service_account(api.namespace, LEASE)
    with OperatorProcess(kubeconfig, tmp_path, namespaces=[api.namespace], fork=True) as operator:
        pipeline = api.apply(build_pipeline())
        eventually(lambda: "cannot set blockOwnerDeletion" in operator.log.read_text(), why="refused")
    assert list_children(api, pipeline["metadata"]["name"]) == {}
    with pytest.raises(ApiError):
        api.get("Deployment", "omni")
