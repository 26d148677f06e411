"""After every kind of API server failure, the final state is the same as without failures."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    PIPELINE_LABEL,
    build_pipeline,
    list_children,
    list_labelled,
    revisions,
    serving_revision,
    snapshot,
    wait_settled,
)
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

AWAY_S = 25.0
"""Longer than a Lease lasts by default, and than the pauses between attempts to connect."""


@pytest.mark.parametrize(
    "least_s", [0.0, pytest.param(600.0, marks=[pytest.mark.full, pytest.mark.timeout(1200)])], ids=["once", "long"]
)
def test_a_third_of_the_calls_fails(
    api: Api, proxy: FaultProxy, make_operator: Callable[..., OperatorProcess], least_s: float
) -> None:
    """Every pipeline reaches its latest spec, however often the spec changes while calls fail."""
    names = [f"p{index}" for index in range(3)]
    operator = make_operator(server=proxy.url)
    operator.start(ready=False)
    proxy.fail(0.3)
    for name in names:
        api.create(build_pipeline(name))
    for name in names:
        wait_settled(api, name, timeout_s=3 * PATIENCE_S)
    until, version = time.monotonic() + least_s, 1
    while version == 1 or time.monotonic() < until:
        version += 1
        for name in names:
            api.patch("OmniPipeline", name, {"spec": {"defaults": {"image": f"example.com/stage:{version}"}}})
        for name in names:
            wait_settled(api, name, timeout_s=3 * PATIENCE_S)
    proxy.fail(0.0)
    failed = sum(bool(call.fault) for call in proxy.calls)
    assert failed >= len(proxy.calls) / 10
    for name in names:
        eventually(lambda name=name: revisions(api, name) == {serving_revision(api, name)})
        api.delete("OmniPipeline", name)
    eventually(lambda: all(list_labelled(api, name) == [] for name in names), timeout_s=PATIENCE_S)
    assert operator.child.running


def test_the_api_server_is_killed_and_away(
    control_plane: ControlPlane, api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    with make_operator() as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        expected = snapshot(api)
        control_plane.kill()
        time.sleep(AWAY_S)
        assert operator.child.running
        control_plane.start()
        name = next(name for kind, name in expected if kind == "Service")
        api.delete("Service", name)
        eventually(lambda: snapshot(api) == expected, timeout_s=PATIENCE_S)
        api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 60}}})
        eventually(lambda: api.get("OmniPipeline", "omni")["status"]["observedGeneration"] == 2, timeout_s=PATIENCE_S)
        for pod in api.list("Pod"):
            api.delete("Pod", pod["metadata"]["name"], grace_s=0)
        wait_settled(api)


@pytest.mark.parametrize("end", ["cut", "410 Gone", "api server restart"])
def test_watches_end(
    control_plane: ControlPlane, api: Api, proxy: FaultProxy, make_operator: Callable[..., OperatorProcess], end: str
) -> None:
    with make_operator(server=proxy.url) as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        expected = snapshot(api)
        if end == "api server restart":
            control_plane.restart(kill=True)
        else:
            # A watch that renews itself at this moment is missed.
            eventually(lambda: (proxy.cut_watches if end == "cut" else proxy.expire_watches)() >= 8)
        for kind in ("Deployment", "Service", "ConfigMap"):
            api.delete(kind, next(name for child_kind, name in expected if child_kind == kind))
        eventually(lambda: snapshot(api) == expected, timeout_s=PATIENCE_S)
        # New objects are seen as well.
        api.create(build_pipeline("second"))
        eventually(lambda: len(list_children(api, "second")) == len(expected), timeout_s=PATIENCE_S)
        wait_settled(api, "second")


def test_changes_in_a_gap(api: Api, proxy: FaultProxy, make_operator: Callable[..., OperatorProcess]) -> None:
    """The operator catches up after a time without the API server.

    Meanwhile children are deleted, and pipelines are deleted, created and replaced under the same name.
    """
    with make_operator(server=proxy.url):
        for name in ("kept", "deleted", "replaced"):
            api.create(build_pipeline(name))
        for name in ("kept", "deleted", "replaced"):
            wait_settled(api, name)
        expected = snapshot(api, "kept")
        proxy.go_away()
        for kind, name in expected:
            if kind in ("Service", "ConfigMap", "NetworkPolicy"):
                api.delete(kind, name)
        api.delete("OmniPipeline", "deleted")
        api.delete("OmniPipeline", "replaced")
        replaced = api.create(build_pipeline("replaced", defaults={"image": "example.com/stage:2"}))
        api.create(build_pipeline("created"))
        eventually(
            lambda: list_labelled(api, "deleted") == [], why="garbage-collected before the operator is reconnected"
        )
        proxy.come_back()

        eventually(lambda: snapshot(api, "kept") == expected, timeout_s=PATIENCE_S)
        for name in ("kept", "replaced", "created"):
            wait_settled(api, name)
        owners = {
            owner["uid"]
            for child in list_children(api, "replaced").values()
            for owner in child["metadata"]["ownerReferences"]
        }
        assert owners == {replaced["metadata"]["uid"]}
        # The operator wrote nothing for the pipeline that was deleted meanwhile.
        assert [key for key in list_labelled(api, "deleted") if key[0] not in ("Pod", "ReplicaSet")] == []


def test_a_pipeline_deleted_while_the_operator_stands_still(
    api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    """An operator resumed after SIGSTOP still has the deleted pipeline in its caches, but writes no child of it."""
    with make_operator() as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        operator.child.send(signal.SIGSTOP)
        api.delete("OmniPipeline", "omni")
        eventually(lambda: list_labelled(api) == [])
        operator.child.send(signal.SIGCONT)
        eventually(lambda: operator.metrics()['omni_operator_pipelines{ready="True"}'] == 0)
        wait_idle(operator)
        assert list_labelled(api) == []


def test_rights_are_lost_and_regained(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    with make_operator() as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        expected = snapshot(api)
        bindings = api.list("RoleBinding")
        for binding in bindings:
            api.delete("RoleBinding", binding["metadata"]["name"])
        for kind, name in expected:
            if kind == "Service":
                api.delete(kind, name)
        eventually(lambda: any('code="403"' in sample for sample in operator.metrics()), why="calls are refused")
        assert operator.child.running
        for binding in bindings:
            for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
                binding["metadata"].pop(field)
            api.create(binding)
        eventually(lambda: snapshot(api) == expected)
        assert api.list("Pod", labels=f"{PIPELINE_LABEL}=omni")


def test_a_refused_namespace_holds_up_no_other(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """One of the operator's namespaces was deleted, and with it the Role that lets the operator list it."""
    with make_operator("--namespace", "deleted-long-ago") as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        eventually(lambda: operator.metrics()['omni_operator_api_calls_total{code="403",verb="list"}'] > 0)
        assert operator.is_ready()
        refused = "does not let the operator watch the pipelines of namespace deleted-long-ago (403)"
        eventually(lambda: refused in operator.log.read_text(), why="it says so")
        log = operator.log.read_text()
    assert log.count(refused) == 1
    assert "remove it from watchNamespaces" in log
    assert "Request attempt" not in log, "kopf's own lines, one for each attempt"
