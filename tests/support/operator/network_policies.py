"""Evaluates which connections a set of NetworkPolicies (networking.k8s.io/v1) allows, without a cluster.

If policies select a pod for a direction (ingress or egress), traffic may pass only if at least one of them allows it.
If no policy selects the pod, all traffic of this direction may pass. Both the source's egress and the destination's
ingress must allow a connection. Responses on an allowed connection need no rule.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from omni_kube.objects import Manifest

NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
"""A label that every namespace has."""


@dataclass(frozen=True, slots=True)
class PodPeer:
    """A pod, as a source or a destination."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Container ports by name, for rules that name a port."""


@dataclass(frozen=True, slots=True)
class AddressPeer:
    """A peer that is not a pod: a host outside the cluster, or a node with its kubelet."""

    address: str


Peer = PodPeer | AddressPeer


def is_allowed(policies: Iterable[Manifest], source: Peer, destination: Peer, port: int, protocol: str = "TCP") -> bool:
    """Returns whether the policies let the source open a connection to a port of the destination."""
    every = list(policies)
    return _passes(every, "Egress", source, destination, port, protocol) and _passes(
        every, "Ingress", destination, source, port, protocol
    )


def _passes(policies: Sequence[Manifest], direction: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    if not isinstance(pod, PodPeer):
        return True
    selecting = [policy for policy in policies if _selects(policy, direction, pod)]
    # The port always belongs to the destination.
    target = other if direction == "Egress" else pod
    names = target.ports if isinstance(target, PodPeer) else {}
    return not selecting or any(
        _matches_port(rule.get("ports"), port, protocol, names)
        and _matches_peer(rule.get("to" if direction == "Egress" else "from"), other, policy["metadata"]["namespace"])
        for policy in selecting
        for rule in policy["spec"].get(direction.lower(), [])
    )


def _selects(policy: Manifest, direction: str, pod: PodPeer) -> bool:
    spec = policy["spec"]
    implied = ["Ingress", "Egress"] if "egress" in spec else ["Ingress"]
    return (
        policy["metadata"]["namespace"] == pod.namespace
        and direction in spec.get("policyTypes", implied)
        and matches_selector(spec.get("podSelector", {}), pod.labels)
    )


def _matches_port(rules: Sequence[Manifest] | None, port: int, protocol: str, names: Mapping[str, int]) -> bool:
    return not rules or any(
        rule.get("protocol", "TCP") == protocol and _holds_port(rule.get("port"), rule.get("endPort"), port, names)
        for rule in rules
    )


def _holds_port(first: int | str | None, last: int | None, port: int, names: Mapping[str, int]) -> bool:
    if first is None:
        return True
    if isinstance(first, str):
        return names.get(first) == port
    return first <= port <= (last or first)


def _matches_peer(rules: Sequence[Manifest] | None, peer: Peer, namespace: str) -> bool:
    return not rules or any(_matches_one_peer(rule, peer, namespace) for rule in rules)


def _matches_one_peer(rule: Manifest, peer: Peer, namespace: str) -> bool:
    if "ipBlock" in rule:
        return isinstance(peer, AddressPeer) and _in_block(rule["ipBlock"], peer.address)
    if not isinstance(peer, PodPeer):
        return False
    if "namespaceSelector" in rule:
        labels = {**peer.namespace_labels, NAMESPACE_NAME_LABEL: peer.namespace}
        in_namespace = matches_selector(rule["namespaceSelector"], labels)
    else:
        in_namespace = peer.namespace == namespace
    return in_namespace and matches_selector(rule.get("podSelector", {}), peer.labels)


def _in_block(block: Manifest, address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return ip in ipaddress.ip_network(block["cidr"]) and not any(
        ip in ipaddress.ip_network(part) for part in block.get("except", [])
    )


def matches_selector(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Returns whether labels satisfy a label selector. All labels satisfy an empty selector."""
    exact: Mapping[str, str] = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        _satisfies(expression, labels) for expression in selector.get("matchExpressions", [])
    )


def _satisfies(expression: Manifest, labels: Mapping[str, str]) -> bool:
    present, values = expression["key"] in labels, expression.get("values", [])
    match expression["operator"]:
        case "In":
            return present and labels[expression["key"]] in values
        case "NotIn":
            return not present or labels[expression["key"]] not in values
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case unknown:
            raise ValueError(f"operator {unknown!r} of a label selector is not known")
