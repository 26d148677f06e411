"""Compares a live object with the desired manifest, so that unchanged objects need no write.

The API server adds defaults, status and the fields of other managers, and normalises quantities, so the two are never
equal. An object counts as unchanged if the desired manifest is a *subset* of it. Only selectors and the rules of a
NetworkPolicy must be equal. This comparison cannot detect a field that is no longer desired. The hash of the last
applied manifest, kept in an annotation of the object, detects it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple

LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists that the API server merges by key (`x-kubernetes-list-map-keys`): order and other managers' entries do not
matter."""
_PORT_KEYS: Final = ("containerPort", "port")
"""In containers and Services, `ports` is keyed by one of these and the protocol. Elsewhere it is a plain list."""
_QUANTITY_MAPS: Final = frozenset({"limits", "requests", "hard", "capacity"})
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})
_RULES: Final = frozenset({"ingress", "egress"})
"""Rules of a NetworkPolicy. Their `ports` also have the key `port`, but the API server does not merge them by that key.
"""
_SELECTORS: Final = frozenset({"selector", "podSelector", "namespaceSelector"})
"""Atomic maps, which have one owner: a key that another manager adds changes what is selected."""

_QUANTITY: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)\Z")
_SUFFIXES: Final[Mapping[str, Fraction]] = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}


def parse_quantity(value: object) -> Fraction | None:
    """Returns the exact value of a Kubernetes quantity, None if value is not a quantity."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Fraction(number + (exponent or "")) * _SUFFIXES[suffix or ""]


def _thousandths(quantity: Fraction) -> int:
    """Returns a quantity in thousandths, rounded up, as the API server stores the resources of a container."""
    return ceil(quantity * 1000)


def find_difference(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str | None:
    """Returns the path of the first field of desired that is missing or different in live, None if there is none.

    A path looks like `spec.template.spec.containers[name=stage].image`. A key that was added to a selector, or to a
    rule of a NetworkPolicy, counts as a difference too.
    """
    path = _differ_map(desired, live, _Place())
    return None if path is None else (".".join(path).replace(".[", "[") or "(object)")


def find_differences(desired: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what find_difference finds in each field of desired's metadata, spec and other sections."""
    parts: list[Mapping[str, Any]] = []
    for section, content in desired.items():
        parts += (
            [{section: {name: content[name]}} for name in content]
            if isinstance(content, dict)
            else [{section: content}]
        )
    return tuple(path for part in parts if (path := find_difference(part, live)) is not None)


class _Place(NamedTuple):
    """The position of a value in an object, as far as the comparison depends on it."""

    name: str = ""
    """Name of the field."""
    parent: str = ""
    """Name of the enclosing field."""
    in_rules: bool = False
    """Whether it is in the rules of a NetworkPolicy."""


_Path = tuple[str, ...]
"""Names of the fields from a value down to the difference."""


def _differ(desired: Any, live: Any, place: _Place) -> _Path | None:
    if isinstance(desired, dict):
        return _differ_map(desired, live, place)
    if isinstance(desired, list):
        return _differ_list(desired, live, place)
    if place.name in _QUANTITY_FIELDS or place.parent in _QUANTITY_MAPS:
        wanted, found = parse_quantity(desired), parse_quantity(live)
        if wanted is not None:
            return None if found is not None and _thousandths(wanted) == _thousandths(found) else ()
    return None if _equal_scalar(desired, live) else ()


def _differ_map(desired: Mapping[str, Any], live: Any, place: _Place) -> _Path | None:
    if not isinstance(live, dict):
        return ()
    if _is_exact(place) and (more := live.keys() - desired):
        return (min(more),)
    for name, value in desired.items():
        if name not in live:
            return (name,)
        below = live[name]
        if value is below:
            continue
        path = _differ(value, below, _Place(name, place.name, place.in_rules or name in _RULES))
        if path is not None:
            return (name, *path)
    return None


def _is_exact(place: _Place) -> bool:
    """Returns whether a key that another manager added to the map counts as a difference. Ports of a NetworkPolicy are
    an exception within its rules, because the API server itself adds their protocol."""
    return (place.in_rules and place.name != "ports") or place.name in _SELECTORS or place.parent in _SELECTORS


def _differ_list(desired: Sequence[Any], live: Any, place: _Place) -> _Path | None:
    if not isinstance(live, list):
        return ()
    keys = _keys_of(desired, place)
    if not keys:
        if len(desired) != len(live):
            return ()
        for number, (value, below) in enumerate(zip(desired, live, strict=True)):
            path = _differ(value, below, place)
            if path is not None:
                return (f"[{number}]", *path)
        return None
    by_key = {_key(item, keys): item for item in live if isinstance(item, dict)}
    for item in desired:
        match = by_key.get(_key(item, keys))
        path = () if match is None else _differ_map(item, match, place)
        if path is not None:
            return ("[" + ",".join(f"{key}={item[key]}" for key in keys if key in item) + "]", *path)
    return None


def _keys_of(desired: Sequence[Any], place: _Place) -> tuple[str, ...]:
    if not desired or not all(isinstance(item, dict) for item in desired):
        return ()
    if place.name != "ports":
        return LIST_KEYS.get(place.name, ())
    if place.in_rules:
        return ()
    for key in _PORT_KEYS:
        if all(key in item for item in desired):
            return (key, "protocol")
    return ()


def _key(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    # The server fills in TCP, which builders leave out.
    return tuple([item.get(key, "TCP" if key == "protocol" else None) for key in keys])


def _equal_scalar(desired: Any, live: Any) -> bool:
    # In Python True == 1. An int and its text differ: targetPort 50051 is a number, "50051" the name of a port.
    if isinstance(desired, bool) or isinstance(live, bool):
        return desired is live
    if isinstance(desired, int | float) and isinstance(live, int | float):
        return desired == live
    return type(desired) is type(live) and bool(desired == live)
