"""What controllers say of a route, in the forms of gateway.networking.k8s.io/v1 and networking.k8s.io/v1,
as a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from omni_kube.errors import ForbiddenError
from omni_kube.objects import Manifest
from omni_operator.kinds import ChildKey, key_of
from omni_operator.report import REPORTED_FAILURES, describe_failure
from omni_operator.rollout.apply import Outcome
from omni_operator.rollout.plan import ChildConflict, Plan
from omni_operator.state.observed import Observed
from omni_operator.state.slim import can_slim, slim_seen
from omni_operator.status.conditions import Verdict
from omni_operator.status.route import judge_route
from support.operator.operator_pipelines import OWNER, build_all, make_single, pick

PIPELINE = {"metadata": {"name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "generation": 1}}
FAR, NEAR = {"name": "far", "namespace": "infra", "sectionName": "grpc"}, {"name": "near"}
GATEWAYS = make_single(spec={"entry": {"route": {"gatewayApi": {"parentRefs": [FAR, NEAR]}}}})
TLS = make_single(
    spec={
        "entry": {
            "tls": {"secretName": "a"},
            "route": {"gatewayApi": {"parentRefs": [FAR], "backendTls": {"caCertificateRefs": [{"name": "cas"}]}}},
        }
    }
)
INGRESS = make_single(spec={"entry": {"route": {"ingress": {"host": "a.example"}}}})


def said(ref: dict[str, Any], generation: int = 2, **conditions: str) -> dict[str, Any]:
    """Returns a controller's entry for a Gateway: condition type -> its status, or its reason if it is False."""
    entries = [
        {
            "type": kind,
            "status": value if value in ("True", "Unknown") else "False",
            "reason": kind if value == "True" else value,
            "message": f"about {kind}",
            "observedGeneration": generation,
        }
        for kind, value in conditions.items()
    ]
    full = {"group": "gateway.networking.k8s.io", "kind": "Gateway", **ref}
    return {"parentRef": full, "ancestorRef": full, "controllerName": "example.com/c", "conditions": entries}


OK = {"Accepted": "True", "ResolvedRefs": "True"}
GOOD = said({**NEAR, "namespace": OWNER.namespace}, **OK)

PARENTS: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    # name: (status.parents, reason, words of the message)
    "accepted": (
        [said(FAR, **OK), GOOD],
        "Accepted",
        "accepted by Gateway infra/far, listener grpc, Gateway models/near",
    ),
    "nobody": (
        [],
        "RoutePending",
        "no controller has answered for Gateway infra/far, listener grpc; check that it exists",
    ),
    "one of two": ([GOOD], "RoutePending", "infra/far"),
    "another listener's answer": ([said({**FAR, "sectionName": "x"}, **OK), GOOD], "RoutePending", "infra/far"),
    "before the last change": ([said(FAR, 1, **OK), GOOD], "RoutePending", "has not taken it over yet"),
    "half an answer": ([said(FAR, Accepted="True"), GOOD], "RoutePending", "has not taken it over yet"),
    "pending": ([said(FAR, Accepted="Pending", ResolvedRefs="True"), GOOD], "RoutePending", "taken it over"),
    "not admitted": (
        [said(FAR, Accepted="NotAllowedByListeners", ResolvedRefs="True"), GOOD],
        "RouteRefused",
        "Gateway infra/far, listener grpc says Accepted=False, NotAllowedByListeners: about Accepted; let ",
    ),
    "no such host": ([said(FAR, Accepted="NoMatchingListenerHostname"), GOOD], "RouteRefused", "give hostnames that"),
    "a reason of its own": (
        [said(FAR, Accepted="Odd", ResolvedRefs="True"), GOOD],
        "RouteRefused",
        "Odd: about Accepted",
    ),
    "no backend": (
        [said(FAR, Accepted="True", ResolvedRefs="BackendNotFound"), GOOD],
        "RouteUnresolved",
        "ResolvedRefs=False, BackendNotFound",
    ),
    "refused is worse than pending": ([said(NEAR, Accepted="NoMatchingParent")], "RouteRefused", "models/near"),
    "one controller of two": ([said(FAR, Accepted="Odd"), said(FAR, **OK), GOOD], "Accepted", ""),
}


POLICIES: dict[str, tuple[list[dict[str, Any]] | None, str, str]] = {
    # name: (entries of the policy's status.ancestors; None without a policy, reason, words of the message)
    "not written": (None, "RoutePending", "BackendTLSPolicy demo is not written yet"),
    "nobody": ([], "RoutePending", "and that this controller knows BackendTLSPolicy v1"),
    "accepted": ([said(FAR, **OK)], "Accepted", "GRPCRoute demo is accepted by Gateway infra/far"),
    "by the Gateway as a whole": ([said({**FAR, "sectionName": None}, **OK)], "Accepted", ""),
    "without ResolvedRefs": ([said(FAR, Accepted="True")], "Accepted", ""),
    "another Gateway's answer": ([said(NEAR, **OK)], "RoutePending", "has answered for Gateway infra/far"),
    "before the last change": ([said(FAR, 1, **OK)], "RoutePending", "has not taken it over yet"),
    "no ConfigMap": (
        [said(FAR, Accepted="NoValidCACertificate", ResolvedRefs="InvalidCACertificateRef")],
        "RouteUnresolved",
        "BackendTLSPolicy demo: Gateway infra/far, listener grpc says ResolvedRefs=False, InvalidCACertificateRef: "
        "about ResolvedRefs; caCertificateRefs of backendTls must name objects of this namespace with the key ca.crt",
    ),
    "no Secrets": ([said(FAR, Accepted="True", ResolvedRefs="InvalidKind")], "RouteUnresolved", "from ConfigMaps only"),
    "another policy": ([said(FAR, Accepted="Conflicted")], "RouteUnresolved", "an older BackendTLSPolicy is about"),
}


def judge(pipeline: Any, status: dict[str, Any] | None, **given: Any) -> Verdict | None:
    """Returns the verdict on live objects with a status each, by kind, as the store keeps them."""
    children: dict[ChildKey, Manifest] = {}
    for kind, found in (status or {}).items():
        live = pick(build_all(pipeline), kind)
        live = {**live, "metadata": {**live["metadata"], "generation": 2, "uid": "r", "resourceVersion": "7"}}
        kept = slim_seen({**live, "status": found})
        assert not can_slim(kept), "the status must stay"
        children[key_of(kept)] = kept
    return judge_route(pipeline, Observed(PIPELINE, children), given.pop("plan", Plan()), **given)


@pytest.mark.parametrize(("parents", "reason", "words"), PARENTS.values(), ids=PARENTS)
def test_gateways(parents: list[dict[str, Any]], reason: str, words: str) -> None:
    verdict = judge(GATEWAYS, {"GRPCRoute": {"parents": parents}})
    assert verdict is not None
    assert (verdict.holds, verdict.reason) == (reason == "Accepted", reason)
    assert words in verdict.message


@pytest.mark.parametrize(("ancestors", "reason", "words"), POLICIES.values(), ids=POLICIES)
def test_tls_to_the_entry(ancestors: list[dict[str, Any]] | None, reason: str, words: str) -> None:
    policy = {} if ancestors is None else {"BackendTLSPolicy": {"ancestors": ancestors}}
    verdict = judge(TLS, {"GRPCRoute": {"parents": [said(FAR, **OK)]}, **policy})
    assert verdict is not None
    assert (verdict.holds, verdict.reason) == (reason == "Accepted", reason)
    assert words in verdict.message


@pytest.mark.parametrize(
    ("points", "reason", "words"),
    [
        ([], "RoutePending", "check ingressClassName"),
        ([{"ip": "192.0.2.1"}, {"hostname": "lb.example"}], "Accepted", "has the address 192.0.2.1, lb.example"),
    ],
    ids=["no address", "addresses"],
)
def test_ingress(points: list[dict[str, str]], reason: str, words: str) -> None:
    verdict = judge(INGRESS, {"Ingress": {"loadBalancer": {"ingress": points}}})
    assert verdict is not None
    assert (verdict.holds, verdict.reason) == (reason == "Accepted", reason)
    assert words in verdict.message


def test_what_keeps_it_from_being_written() -> None:
    taken = Plan(conflicts=(ChildConflict(ChildKey("Ingress", "demo"), ""),))
    refused = describe_failure(Outcome(error=ForbiddenError("no right"), failed="Ingress demo"), REPORTED_FAILURES)
    for given, reason, words in (
        ({}, "RoutePending", "Ingress demo is not written yet"),
        ({"unwatched": "the cluster has none"}, "RouteUnavailable", "the cluster has none"),
        ({"plan": taken}, "ChildConflict", "kubectl delete -n models ingress/demo"),
        ({"errors": refused}, "ApplyFailed", "writing Ingress demo failed: no right"),
    ):
        verdict = judge(INGRESS, None, **given)
        assert verdict is not None
        assert (verdict.holds, verdict.reason) == (False, reason)
        assert words in verdict.message


def test_no_route_no_condition() -> None:
    assert judge(make_single(), None) is None
