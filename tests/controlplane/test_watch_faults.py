"""What happens while nobody watches: servers that go and come back, watches that end, calls that fail, rights that go.

Deletions are the point: a watch that comes back only tells of what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.controlplane.api import Api, eventually
from support.controlplane.control_plane import ControlPlane
from support.controlplane.fault_proxy import FaultProxy
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, list_children, list_labelled, snapshot, wait_settled

pytestmark = pytest.mark.controlplane

MakeOperator = Callable[..., OperatorProcess]
CRDS = Path(__file__).resolve().parents[2] / "manifests" / "crd"
CONVERGED_WITHIN_S = 60.0


@pytest.fixture
def watched(
    make_operator: MakeOperator, proxy: FaultProxy, api: Api
) -> Iterator[tuple[OperatorProcess, FaultProxy, Api]]:
    """An operator behind a proxy with two pipelines that have settled."""
    with make_operator(server=proxy.url) as operator:
        for name in ("kept", "lost"):
            api.apply(build_pipeline(name))
        for name in ("kept", "lost"):
            wait_settled(api, name)
        wait_idle(operator)
        yield operator, proxy, api


def assert_converges(api: Api, before: dict[tuple[str, str], dict[str, object]]) -> None:
    def same() -> bool:
        assert snapshot(api, "kept") == before
        return True

    eventually(same, timeout_s=CONVERGED_WITHIN_S, why="kept is as it was")


@pytest.mark.parametrize("ending", ["cut", "expired"])
def test_watches_that_end_lose_no_change(watched: tuple[OperatorProcess, FaultProxy, Api], ending: str) -> None:
    operator, proxy, api = watched
    before = snapshot(api, "kept")
    ended = proxy.cut_watches() if ending == "cut" else proxy.expire_watches()
    assert ended >= 11
    api.delete("Service", "kept")
    api.patch("ConfigMap", next(name for kind, name in before if kind == "ConfigMap"), {"metadata": {"labels": None}})
    assert_converges(api, before)
    assert operator.child.running


def test_deletions_while_the_operator_is_cut_off(watched: tuple[OperatorProcess, FaultProxy, Api]) -> None:
    operator, proxy, api = watched
    before = snapshot(api, "kept")
    proxy.go_away()
    api.delete("Service", "kept")
    for kind, name in before:
        if kind in ("NetworkPolicy", "Deployment"):
            api.delete(kind, name)
    api.delete("OmniPipeline", "lost")
    api.apply(build_pipeline("new"))
    eventually(lambda: not list_labelled(api, "lost"), why="the garbage collector is done")
    # What the operator would go on from is history by now.
    api.delete("Lease", "omnipipeline-operator")
    proxy.come_back()
    proxy.expire_watches()
    assert_converges(api, before)
    wait_settled(api, "new")
    wait_idle(operator)
    assert list_labelled(api, "lost") == [], "children of a pipeline that is gone are not made again"
    assert operator.child.running


def test_a_third_of_all_calls_fail(make_operator: MakeOperator, proxy: FaultProxy, api: Api) -> None:
    proxy.fail(0.3)
    with make_operator(server=proxy.url) as operator:
        names = [f"omni{number}" for number in range(3)]
        for name in names:
            api.apply(build_pipeline(name))
        for name in names:
            wait_settled(api, name, timeout_s=120.0)
        api.patch("OmniPipeline", names[0], {"spec": {"suspend": True}})
        api.delete("OmniPipeline", names[1])
        api.delete("Service", names[2])
        eventually(lambda: not api.list("Pod", labels=f"omnipipeline.io/pipeline={names[0]}"), timeout_s=120.0)
        eventually(lambda: not list_labelled(api, names[1]), timeout_s=120.0)
        eventually(lambda: api.find("Service", names[2]), timeout_s=120.0)
        assert {call.fault for call in proxy.calls} >= {"409", "429", "500", "silence", "lost answer"}
        proxy.fail(0.0)
        for name in (names[0], names[2]):
            assert list_children(api, name)
        wait_settled(api, names[2])
        wait_idle(operator)
        assert operator.metrics()["omni_operator_noop_applies_total"] <= 3.0, "only answers that were lost"


def test_rights_that_are_taken_away_and_given_back(make_operator: MakeOperator, api: Api) -> None:
    binding = api.get("RoleBinding", "operator")
    with make_operator("--lease-duration=3") as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        before = snapshot(api)
        api.delete("RoleBinding", "operator")
        eventually(lambda: operator.metrics()["omni_operator_leader"] == 0.0, why="it cannot renew")
        api.delete("Service", "omni")
        api.delete("NetworkPolicy", next(name for kind, name in before if kind == "NetworkPolicy"))
        eventually(lambda: operator.child.running, stays_s=2.0)
        binding["metadata"] = {"name": "operator"}
        api.apply(binding)

        def healed() -> bool:
            assert snapshot(api) == before
            return True

        eventually(healed, timeout_s=CONVERGED_WITHIN_S, why="healed")
        assert operator.child.running


def test_an_api_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane") as plane:
        plane.apply_crds(*sorted(CRDS.glob("*.yaml")))
        api = plane.create_namespace("outage")
        with OperatorProcess(plane.kubeconfig, tmp_path, namespaces=["outage"], fork=True) as operator:
            for name in ("kept", "lost"):
                api.apply(build_pipeline(name))
            for name in ("kept", "lost"):
                wait_settled(api, name)
            wait_idle(operator)
            before = snapshot(api, "kept")
            plane.restart(kill=True)
            api.delete("Service", "kept")
            api.delete("OmniPipeline", "lost")
            assert_converges(api, before)
            eventually(lambda: not list_labelled(api, "lost"), timeout_s=CONVERGED_WITHIN_S)
            wait_settled(api, "kept")
            wait_idle(operator)
            assert list_labelled(api, "lost") == []
            assert operator.child.running
            assert operator.http("health", "/healthz")[0] == 200
