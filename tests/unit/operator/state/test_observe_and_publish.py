"""The pure functions that read the store before a decision, and those that prepare the operator's reports after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from omni_kube.api.wire import Seen
from omni_kube.errors import ApiError, RetryClass, api_error
from omni_kube.objects import NamespacedName
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import ChildKey, key_of
from omni_operator.report import REPORTED_FAILURES, describe_failure, result_of
from omni_operator.rollout.apply import Outcome
from omni_operator.rollout.decide import decide, parse_live_pipeline
from omni_operator.rollout.plan import Plan, Verified, compute_plan
from omni_operator.state.observe import add_children, count_ready_endpoints, new_store, observe_pipeline
from omni_operator.state.observed import Observed
from omni_operator.status.events import EventData
from omni_operator.status.publish import build_event, is_minor, live_status
from omni_proto.pipeline import PipelineError
from omni_proto.pod_contract import PIPELINE_LABEL

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PIPELINE: dict[str, Any] = {
    "apiVersion": "omnipipeline.io/v1alpha1",
    "kind": "OmniPipeline",
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3, "resourceVersion": "9"},
    "spec": {
        "model": {"uri": "file:///models/tiny"},
        "stages": [{"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]}],
    },
}


def labelled(kind: str, name: str, api_version: str = "v1", **fields: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "resourceVersion": "5", "labels": {PIPELINE_LABEL: "p"}}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def test_a_pipeline_is_observed_with_what_carries_its_label() -> None:
    store = new_store()
    store.put_seen(Seen.of(PIPELINE))
    for manifest in (
        labelled("Service", "p"),
        labelled("Pod", "pod"),
        labelled("ReplicaSet", "set", "apps/v1"),
        labelled("Pod", "other") | {"metadata": {"namespace": "ns", "name": "other", "resourceVersion": "5"}},
    ):
        store.put_seen(Seen.of(manifest))
    observed = observe_pipeline(store, NamespacedName("ns", "p"))
    assert observed is not None
    assert (observed.name, observed.namespace, observed.uid, observed.generation) == ("p", "ns", "u", 3)
    assert set(observed.children) == {ChildKey("Service", "p")}
    assert [pod["metadata"]["name"] for pod in observed.pods] == ["pod"]
    assert [item["metadata"]["name"] for item in observed.replica_sets] == ["set"]
    more = add_children(observed, [labelled("ConfigMap", "c")])
    assert set(more.children) == {ChildKey("Service", "p"), ChildKey("ConfigMap", "c")}
    assert observe_pipeline(store, NamespacedName("ns", "unknown")) is None


def endpoint(*addresses: str, ready: bool | None = True, uid: str = "") -> dict[str, Any]:
    target = {"targetRef": {"uid": uid}} if uid else {}
    return {"addresses": list(addresses), "conditions": {} if ready is None else {"ready": ready}, **target}


def endpoint_slice(service: str | None, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {} if service is None else {"kubernetes.io/service-name": service}
    return {"metadata": {"labels": labels}, "endpoints": list(endpoints) or None}


@pytest.mark.parametrize(
    ("slices", "counts"),
    [
        ([], {}),
        ([endpoint_slice("s")], {"s": 0}),
        ([endpoint_slice(None, endpoint("1.1.1.1"))], {}),
        ([endpoint_slice("s", endpoint("1.1.1.1"), endpoint("1.1.1.2", ready=False))], {"s": 1}),
        ([endpoint_slice("s", endpoint("1.1.1.1", ready=None))], {"s": 1}),
        ([endpoint_slice("s", endpoint("1.1.1.1")), endpoint_slice("s", endpoint("1.1.1.1"))], {"s": 1}),
        (
            [endpoint_slice("s", endpoint("1.1.1.1", uid="a")), endpoint_slice("s", endpoint("fd00::1", uid="a"))],
            {"s": 1},
        ),
        ([endpoint_slice("s", endpoint("1.1.1.1")), endpoint_slice("t", endpoint("1.1.1.1"))], {"s": 1, "t": 1}),
    ],
    ids=["none", "empty", "of no service", "one not ready", "unknown", "twice", "both families", "two services"],
)
def test_ready_endpoints(slices: list[dict[str, Any]], counts: dict[str, int]) -> None:
    assert count_ready_endpoints(slices) == counts


def condition(kind: str = "Ready", status: str = "True", reason: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "observedGeneration": 1, "message": "m"} | fields


@pytest.mark.parametrize(
    ("after", "minor"),
    [
        ({"conditions": [condition()], "readyStages": "2/3"}, True),
        ({"conditions": [condition(message="other")]}, True),
        ({"conditions": [condition(status="False")]}, False),
        ({"conditions": [condition(reason="Other")]}, False),
        ({"conditions": [condition(observedGeneration=2)]}, False),
        ({}, False),
    ],
    ids=["numbers", "words", "flip", "reason", "generation", "nothing"],
)
def test_what_may_wait(after: dict[str, Any], minor: bool) -> None:
    """A status update is minor, and may wait, if only numbers or messages change."""
    assert is_minor({"conditions": [condition()], "readyStages": "1/3"}, after) is minor


def test_conditions_of_others_are_not_ours() -> None:
    """live_status leaves out conditions that other controllers wrote."""
    status = {"conditions": [condition(), condition("Audited")], "url": "x"}
    observed = Observed(pipeline=PIPELINE | {"status": status})
    assert live_status(observed) == {"conditions": [condition()], "url": "x"}
    assert live_status(Observed(pipeline=PIPELINE)) == {}


def test_an_event_says_whom_it_is_about_in_bounds() -> None:
    """An Event refers to its pipeline, and its fields stay within the API's limits."""
    event = build_event(Observed(pipeline=PIPELINE), EventData("Warning", "Reason", "ä" * 2000), "i" * 300, NOW)
    assert event["involvedObject"]["uid"] == "u"
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("p.")
    assert len(event["message"].encode()) <= 1024
    assert len(event["reportingInstance"]) == 128
    assert event["firstTimestamp"] == "2026-11-21T12:00:00Z"


@pytest.mark.parametrize(
    ("status", "failures", "told"),
    [
        (422, 0, True),
        (403, 0, True),
        (500, 0, False),
        (500, REPORTED_FAILURES, True),
        (409, 1, False),
        (429, REPORTED_FAILURES - 1, False),
    ],
    ids=str,
)
def test_which_failures_the_status_reports(status: int, failures: int, told: bool) -> None:
    """The status reports refusals immediately, and transient errors only from REPORTED_FAILURES failures on."""
    outcome = Outcome(error=api_error(status, {"message": "no"}), failed="Deployment d")
    assert [(error.what, error.message) for error in describe_failure(outcome, failures)] == (
        [("Deployment d", "no")] if told else []
    )


def test_a_namespace_that_goes_is_no_failure() -> None:
    """An error that occurs because the namespace is being deleted is not reported."""

    class Ending(ApiError):
        retry = RetryClass.NEVER

    assert describe_failure(Outcome(error=Ending("x")), 99) == []
    assert describe_failure(Outcome(), 99) == []


def test_a_live_pipeline_is_parsed_by_its_spec_alone() -> None:
    live = PIPELINE | {"status": {"anything": 1}}
    live["metadata"] = {**PIPELINE["metadata"], "managedFields": [{}], "finalizers": ["x"]}
    assert parse_live_pipeline(live).metadata.generation == 3
    with pytest.raises(PipelineError, match="stages"):
        parse_live_pipeline(PIPELINE | {"spec": {"model": {"uri": "file:///x"}}})


def test_a_decision_is_empty_once_it_was_carried_out() -> None:
    settings = BuildSettings()
    pipeline = parse_live_pipeline(PIPELINE)
    first = decide(pipeline, Observed(pipeline=PIPELINE), settings, NOW)
    assert {manifest["kind"] for manifest in first.plan.apply} >= {"Deployment", "Service", "ControllerRevision"}
    live = {
        key_of(item): item | {"metadata": item["metadata"] | {"uid": item["metadata"]["name"], "resourceVersion": "1"}}
        for item in first.plan.apply
    }
    verified = Verified()
    for _ in range(2):
        again = decide(pipeline, Observed(pipeline=PIPELINE, children=live), settings, NOW, verified)
        assert again.plan.is_empty


def test_what_was_verified_is_not_compared_again_until_it_changes() -> None:
    pipeline = parse_live_pipeline(PIPELINE)
    desired = decide(pipeline, Observed(pipeline=PIPELINE), BuildSettings(), NOW).plan.apply
    service = next(item for item in desired if item["kind"] == "Service")
    live = service | {"metadata": service["metadata"] | {"uid": "s", "resourceVersion": "1"}}
    edited = live | {"spec": {}}
    verified = Verified(limit=1)
    verified.add_applied(service, live)

    def is_planned(child: dict[str, Any]) -> bool:
        observed = Observed(pipeline=PIPELINE, children={key_of(child): child})
        return not compute_plan([service], observed, verified=verified).is_empty

    assert not is_planned(edited), "this version is verified, so it is not compared"
    edited["metadata"] = edited["metadata"] | {"resourceVersion": "2"}
    assert is_planned(edited)
    assert not is_planned(live)
    verified.add(("another", "x", "1"))
    assert is_planned(live | {"spec": {}}), "the verified version was forgotten, so it is compared"


def test_what_a_quota_denies_is_not_counted_as_the_operators_error() -> None:
    """OmniOperatorReconcileErrors is about the operator; a tenant's quota shows in that pipeline's own alerts."""
    assert result_of(Plan(), Outcome(error=api_error(403, b"exceeded quota: objects, requested: ..."))) == "denied"
    assert result_of(Plan(), Outcome(error=api_error(403, b"cannot patch"))) == "error"
    assert result_of(Plan(), Outcome(applied=1)) == "changed"
