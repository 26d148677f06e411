"""Judges the route from outside the cluster: what its controllers say about it, or why it is not there. Pure.

A Gateway's controller answers in status.parents of a GRPCRoute or HTTPRoute, one entry for each parentRef. An Ingress
only gets an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from omni_kube.objects import Manifest, is_terminating, value_at
from omni_operator.desired.route import route_kind
from omni_operator.kinds import INGRESSES
from omni_operator.names import entry_service_name
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Plan
from omni_operator.state.observed import Observed
from omni_operator.status.assessment import ChildError
from omni_operator.status.conditions import Verdict
from omni_operator.status.verdicts import describe_conflicts, describe_errors
from omni_proto.pipeline import OmniPipeline

_REMEDIES: Final[Mapping[str, str]] = {
    "NotAllowedByListeners": "let allowedRoutes of the Gateway's listener admit this namespace and kind",
    "NoMatchingListenerHostname": "give hostnames that a listener of the Gateway serves",
    "NoMatchingParent": "correct sectionName and port of the parentRef: the Gateway has no such listener",
    "UnsupportedProtocol": "the Gateway does not speak to the Service's appProtocol: kubernetes.io/h2c, or https if "
    "entry.tls is set; look up how its implementation is configured to",
    "BackendNotFound": "wait until the Service exists",
}
"""What to do about the reasons that the Gateway API defines for Accepted and ResolvedRefs."""


def judge_route(
    pipeline: OmniPipeline, observed: Observed, plan: Plan, unwatched: str = "", errors: Sequence[ChildError] = ()
) -> Verdict | None:
    """Returns the verdict on RouteAccepted; None if the spec asks for no route.

    plan: the writes of the route. unwatched: why the operator cannot keep it. errors: writes that failed.
    """
    kind = route_kind(pipeline.spec.entry.route)
    if kind is None:
        return None
    if unwatched:
        return Verdict(False, Reason.ROUTE_UNAVAILABLE, unwatched)
    if foreign := [conflict for conflict in plan.conflicts if not conflict.leftover]:
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(foreign, observed.namespace))
    if errors:
        return Verdict(False, Reason.APPLY_FAILED, describe_errors(errors))
    name = f"{kind.kind} {entry_service_name(observed.name)}"
    live = observed.child(kind.kind, entry_service_name(observed.name))
    if live is None or not observed.owns(live) or is_terminating(live):
        return Verdict(False, Reason.ROUTE_PENDING, f"{name} is not written yet")
    return _judge_ingress(name, live) if kind is INGRESSES else _judge_parents(name, live)


def _judge_ingress(name: str, live: Manifest) -> Verdict:
    points: Sequence[Mapping[str, Any]] = value_at(live, "status", "loadBalancer", "ingress", default=())
    addresses = [address for point in points if (address := point.get("hostname") or point.get("ip"))]
    if addresses:
        return Verdict(True, Reason.ACCEPTED, f"{name} has the address {', '.join(addresses)}")
    return Verdict(
        False,
        Reason.ROUTE_PENDING,
        f"no controller has given {name} an address; check ingressClassName (kubectl get ingressclasses). Some "
        "controllers publish addresses only if they are configured to",
    )


def _judge_parents(name: str, live: Manifest) -> Verdict:
    wanted: Sequence[Mapping[str, Any]] = value_at(live, "spec", "parentRefs", default=())
    if not wanted:
        return Verdict(False, Reason.ROUTE_PENDING, f"{name} is too large to be read; remove what others added to it")
    namespace = live["metadata"]["namespace"]
    verdicts = [_judge_parent(name, live, ref, _describe_parent(ref, namespace)) for ref in wanted]
    order = (Reason.ROUTE_REFUSED, Reason.ROUTE_UNRESOLVED, Reason.ROUTE_PENDING)
    failed = sorted((one for one in verdicts if not one.holds), key=lambda one: order.index(one.reason))
    if failed:
        return failed[0]
    gateways = ", ".join(_describe_parent(ref, namespace) for ref in wanted)
    return Verdict(True, Reason.ACCEPTED, f"{name} is accepted by {gateways}")


def _judge_parent(name: str, live: Manifest, ref: Mapping[str, Any], gateway: str) -> Verdict:
    """Returns the verdict of the controllers of one parentRef. One that accepts the route is enough."""
    verdicts = [_judge_conditions(name, gateway, conditions) for conditions in _answers(live, ref)]
    pending = (
        f"no controller has answered for {gateway}; check that it exists, that a controller runs for its class, and "
        "that this controller knows the kind (entry.route.gatewayApi.kind)"
    )
    return next(
        (one for one in verdicts if one.holds),
        verdicts[0] if verdicts else Verdict(False, Reason.ROUTE_PENDING, f"{name}: {pending}"),
    )


def _answers(live: Manifest, ref: Mapping[str, Any]) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Yields each controller's conditions about a parentRef, by type, if they are about the route's present spec."""
    namespace, generation = live["metadata"]["namespace"], live["metadata"].get("generation", 0)
    for parent in value_at(live, "status", "parents", default=()):
        if _identity(parent.get("parentRef") or {}, namespace) == _identity(ref, namespace):
            yield {
                condition.get("type", ""): condition
                for condition in parent.get("conditions") or ()
                if condition.get("observedGeneration", generation) >= generation
            }


def _judge_conditions(name: str, gateway: str, conditions: Mapping[str, Mapping[str, Any]]) -> Verdict:
    kinds = {"Accepted": Reason.ROUTE_REFUSED, "ResolvedRefs": Reason.ROUTE_UNRESOLVED}
    for kind, reason in kinds.items():
        condition = conditions.get(kind, {})
        if condition.get("status") == "False" and condition.get("reason") != "Pending":
            why, remedy = str(condition.get("reason", "")), _REMEDIES.get(str(condition.get("reason")), "")
            said = " ".join(str(condition.get("message", "")).split())
            return Verdict(
                False, reason, f"{name}: {gateway} says {kind}=False, {why}: {said}" + (f"; {remedy}" if remedy else "")
            )
    if all(conditions.get(kind, {}).get("status") == "True" for kind in kinds):
        return Verdict(True, Reason.ACCEPTED, name)
    return Verdict(False, Reason.ROUTE_PENDING, f"{name}: the controller of {gateway} has not taken it over yet")


def _identity(ref: Mapping[str, Any], namespace: str) -> tuple[Any, ...]:
    return ref.get("name"), ref.get("namespace") or namespace, ref.get("sectionName"), ref.get("port")


def _describe_parent(ref: Mapping[str, Any], namespace: str) -> str:
    listener = ref.get("sectionName") or ref.get("port")
    return f"Gateway {ref.get('namespace') or namespace}/{ref['name']}" + (f", listener {listener}" if listener else "")
