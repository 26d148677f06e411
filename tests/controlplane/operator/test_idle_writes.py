"""The operator makes one apply per child and few status writes, and writes nothing while nothing changes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, build_stage, list_children, wait_available, wait_settled
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_calls import Call
from support.controlplane.server.fault_proxy import POD_CHANGES, FaultProxy

pytestmark = pytest.mark.controlplane

MakeOperator = Callable[..., OperatorProcess]
PIPELINES = 3
STATUS_WRITES = 3


def looks(operator: OperatorProcess) -> float:
    return operator.metrics()["omni_operator_reconcile_duration_seconds_count"]


def writes(proxy: FaultProxy) -> list[Call]:
    return [call for call in proxy.calls if call.write]


def test_a_creation_costs_one_apply_a_child_and_three_status_writes_at_most(
    make_operator: MakeOperator, proxy: FaultProxy, api: Api
) -> None:
    proxy.hold_watches(*POD_CHANGES)
    with make_operator("--resync=1", "--debounce=2", server=proxy.url) as operator:
        for number in range(PIPELINES):
            api.apply(build_pipeline(f"omni{number}"))
        wait_available(api, 3 * PIPELINES)
        proxy.flow()
        for number in range(PIPELINES):
            wait_settled(api, f"omni{number}")
        wait_idle(operator)
        applied = Counter(call.path for call in writes(proxy) if not call.resource.endswith("/status"))
        children = sum(len(list_children(api, f"omni{number}")) for number in range(PIPELINES))
        assert set(applied.values()) == {1}
        assert len(applied) == children
        statuses = Counter(call.path for call in writes(proxy) if call.resource.endswith("/status"))
        assert len(statuses) == PIPELINES
        assert max(statuses.values()) <= STATUS_WRITES
        assert operator.metrics()["omni_operator_noop_applies_total"] == 0.0

        # Resyncs continue without any write.
        before, seen = len(writes(proxy)), looks(operator)
        eventually(lambda: looks(operator) >= seen + 3 * PIPELINES, why="three resyncs of all pipelines")
        assert [call.path for call in writes(proxy)[before:]] == []

    # A new operator process, whose caches are empty, writes nothing either.
    before = len(writes(proxy))
    with make_operator("--resync=1", server=proxy.url) as operator:
        eventually(lambda: looks(operator) >= 2 * PIPELINES, why="every pipeline is reconciled twice")
        assert [call.path for call in writes(proxy)[before:]] == []


def test_an_edit_costs_what_it_changes(make_operator: MakeOperator, proxy: FaultProxy, api: Api) -> None:
    """A change of resources writes one Deployment, but no Service, NetworkPolicy or ServiceAccount."""
    with make_operator(server=proxy.url) as operator:
        stages = [build_stage("thinker", outputs=["Text"])]
        api.apply(build_pipeline(stages=stages))
        wait_settled(api)
        wait_idle(operator)
        before = len(writes(proxy))
        stages[0]["resources"] = {"limits": {"cpu": "2"}}
        api.apply(build_pipeline(stages=stages))
        wait_settled(api)
        wait_idle(operator)
        kinds = Counter(call.resource for call in writes(proxy)[before:])
        assert kinds["deployments"] == 1
        assert kinds["services"] == kinds["networkpolicies"] == kinds["serviceaccounts"] == 0
        assert kinds["omnipipelines/status"] <= STATUS_WRITES
        assert operator.metrics()["omni_operator_noop_applies_total"] == 0.0


def test_what_the_api_server_stores_in_another_form_is_no_difference(make_operator: MakeOperator, api: Api) -> None:
    """The API server drops a toleration's empty value, and rounds resources up to thousandths."""
    resources = {"limits": {"cpu": "1", "memory": "0.55555Gi"}, "requests": {"cpu": "0.0105"}}
    tolerations = [{"key": "gpu", "value": "", "effect": "NoSchedule"}]
    with make_operator() as operator:
        stage = build_stage("thinker", outputs=["Text"], resources=resources, tolerations=tolerations)
        api.apply(build_pipeline(stages=[stage]))
        wait_settled(api)
        wait_idle(operator)
        (deployment,) = api.list("Deployment")
        pod = deployment["spec"]["template"]["spec"]
        assert "value" not in pod["tolerations"][0]
        assert pod["containers"][0]["resources"]["requests"]["cpu"] == "11m"
        assert operator.metrics()["omni_operator_noop_applies_total"] == 0.0


def test_foreign_objects_cost_nothing(make_operator: MakeOperator, proxy: FaultProxy, api: Api) -> None:
    """ConfigMaps without our label cause neither reconciles nor writes."""
    with make_operator(server=proxy.url) as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        before, rounds = len(writes(proxy)), itertools.count()

        def nobody_looks() -> bool:
            # Something else, such as a late EndpointSlice, may make the operator look during some of the rounds.
            seen, number = looks(operator), next(rounds)
            for index in range(20):
                metadata = {"name": f"foreign-{number}-{index}"}
                api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})
            time.sleep(1.0)
            return looks(operator) == seen

        eventually(nobody_looks, why="a round without a reconcile")
        assert len(writes(proxy)) == before
