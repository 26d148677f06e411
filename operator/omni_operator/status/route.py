"""Judges the route from outside the cluster: what its controllers say about it, or why it is not there. Pure.

A Gateway's controller answers in status.parents of a GRPCRoute or HTTPRoute, one entry for each parentRef, and in
status.ancestors of a BackendTLSPolicy, one for each Gateway. An Ingress only gets an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from omni_kube.objects import Manifest, is_terminating, value_at
from omni_operator.desired.route import route_kinds
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
    **dict.fromkeys(
        ("InvalidCACertificateRef", "NoValidCACertificate"),
        "caCertificateRefs of backendTls must name objects of this namespace with the key ca.crt",
    ),
    "InvalidKind": "the Gateway's implementation reads CAs from ConfigMaps only; copy ca.crt into one",
    "Conflicted": "an older BackendTLSPolicy is about the same Service; delete it",
}
"""What to do about the reasons that the Gateway API defines for Accepted and ResolvedRefs."""


class _Form(NamedTuple):
    """Where controllers answer in an object's status, and what their conditions mean."""

    entries: str
    ref: str
    parts: int
    """How many parts of a reference must agree; see _identity."""
    reasons: Mapping[str, Reason]
    """What False of a condition means, the most telling condition first."""
    needed: tuple[str, ...]
    """Conditions that must be True."""
    knows: str


_ROUTE: Final = _Form(
    "parents",
    "parentRef",
    4,
    {"Accepted": Reason.ROUTE_REFUSED, "ResolvedRefs": Reason.ROUTE_UNRESOLVED},
    ("Accepted", "ResolvedRefs"),
    "the kind (entry.route.gatewayApi.kind)",
)
# A policy's controller may name the Gateway without the listener. ResolvedRefs came later, so not all of them say it.
_POLICY: Final = _Form(
    "ancestors",
    "ancestorRef",
    2,
    {"ResolvedRefs": Reason.ROUTE_UNRESOLVED, "Accepted": Reason.ROUTE_UNRESOLVED},
    ("Accepted",),
    "BackendTLSPolicy v1",
)


def judge_route(
    pipeline: OmniPipeline, observed: Observed, plan: Plan, unwatched: str = "", errors: Sequence[ChildError] = ()
) -> Verdict | None:
    """Returns the verdict on RouteAccepted; None if the spec asks for no route.

    plan: the writes of the route. unwatched: why the operator cannot keep it. errors: writes that failed.
    """
    kinds = route_kinds(pipeline.spec.entry.route)
    if not kinds:
        return None
    if unwatched:
        return Verdict(False, Reason.ROUTE_UNAVAILABLE, unwatched)
    if foreign := [conflict for conflict in plan.conflicts if not conflict.leftover]:
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(foreign, observed.namespace))
    if errors:
        return Verdict(False, Reason.APPLY_FAILED, describe_errors(errors))
    found: list[Manifest] = []
    for kind in kinds:
        live = observed.child(kind.kind, entry_service_name(observed.name))
        if live is None or not observed.owns(live) or is_terminating(live):
            name = f"{kind.kind} {entry_service_name(observed.name)}"
            return Verdict(False, Reason.ROUTE_PENDING, f"{name} is not written yet")
        found.append(live)
    return _judge_ingress(*found) if kinds[0] is INGRESSES else _judge_parents(*found)


def _title(live: Manifest) -> str:
    return f"{live['kind']} {live['metadata']['name']}"


def _judge_ingress(live: Manifest) -> Verdict:
    name = _title(live)
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


def _judge_parents(live: Manifest, policy: Manifest | None = None) -> Verdict:
    name = _title(live)
    wanted: Sequence[Mapping[str, Any]] = value_at(live, "spec", "parentRefs", default=())
    if not wanted:
        return Verdict(False, Reason.ROUTE_PENDING, f"{name} is too large to be read; remove what others added to it")
    namespace = live["metadata"]["namespace"]
    verdicts = [_judge_parent(live, _ROUTE, ref) for ref in wanted]
    verdicts += [_judge_parent(policy, _POLICY, ref) for ref in wanted if policy is not None]
    order = (Reason.ROUTE_REFUSED, Reason.ROUTE_UNRESOLVED, Reason.ROUTE_PENDING)
    failed = sorted((one for one in verdicts if not one.holds), key=lambda one: order.index(one.reason))
    if failed:
        return failed[0]
    gateways = ", ".join(_describe_parent(ref, namespace) for ref in wanted)
    return Verdict(True, Reason.ACCEPTED, f"{name} is accepted by {gateways}")


def _judge_parent(live: Manifest, form: _Form, ref: Mapping[str, Any]) -> Verdict:
    """Returns the verdict of the controllers of one parentRef. One that accepts the object is enough."""
    name, gateway = _title(live), _describe_parent(ref, live["metadata"]["namespace"])
    verdicts = [_judge_conditions(name, gateway, form, conditions) for conditions in _answers(live, form, ref)]
    pending = (
        f"no controller has answered for {gateway}; check that it exists, that a controller runs for its class, and "
        f"that this controller knows {form.knows}"
    )
    return next(
        (one for one in verdicts if one.holds),
        verdicts[0] if verdicts else Verdict(False, Reason.ROUTE_PENDING, f"{name}: {pending}"),
    )


def _answers(live: Manifest, form: _Form, ref: Mapping[str, Any]) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Yields each controller's conditions about a parentRef, by type, if they are about the object's present spec."""
    namespace, generation = live["metadata"]["namespace"], live["metadata"].get("generation", 0)
    wanted = _identity(ref, namespace)[: form.parts]
    for entry in value_at(live, "status", form.entries, default=()):
        if _identity(entry.get(form.ref) or {}, namespace)[: form.parts] == wanted:
            yield {
                condition.get("type", ""): condition
                for condition in entry.get("conditions") or ()
                if condition.get("observedGeneration", generation) >= generation
            }


def _judge_conditions(name: str, gateway: str, form: _Form, conditions: Mapping[str, Mapping[str, Any]]) -> Verdict:
    for kind, reason in form.reasons.items():
        condition = conditions.get(kind, {})
        if condition.get("status") == "False" and condition.get("reason") != "Pending":
            why, remedy = str(condition.get("reason", "")), _REMEDIES.get(str(condition.get("reason")), "")
            said = " ".join(str(condition.get("message", "")).split())
            return Verdict(
                False, reason, f"{name}: {gateway} says {kind}=False, {why}: {said}" + (f"; {remedy}" if remedy else "")
            )
    if all(conditions.get(kind, {}).get("status") == "True" for kind in form.needed):
        return Verdict(True, Reason.ACCEPTED, name)
    return Verdict(False, Reason.ROUTE_PENDING, f"{name}: the controller of {gateway} has not taken it over yet")


def _identity(ref: Mapping[str, Any], namespace: str) -> tuple[Any, ...]:
    return ref.get("name"), ref.get("namespace") or namespace, ref.get("sectionName"), ref.get("port")


def _describe_parent(ref: Mapping[str, Any], namespace: str) -> str:
    listener = ref.get("sectionName") or ref.get("port")
    return f"Gateway {ref.get('namespace') or namespace}/{ref['name']}" + (f", listener {listener}" if listener else "")
