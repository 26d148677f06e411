"""Rewrites what SDKs write into equal schemas that xgrammar enforces. Pure.

    items of a list (draft 7)            -> prefixItems
    propertyNames of an enum             -> properties, and no others
    propertyNames of a $ref              -> the schema itself
    allOf of open objects                -> one object
    type beside anyOf                    -> the type in each alternative
    format: int32 and the like           -> minimum and maximum
    format: uuid4 and the like           -> a pattern
    format: date, time, ipv4 and others  -> a pattern without 31 June, 12:00:60 and 01.2.3.4, which xgrammar's own has,
                                            of host names with parts of 63 characters
    format beside a pattern of zod 4     -> the pattern

What is left as it is, forms/schema.py refuses by name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from omni_stage.forms.disjoint import NOTES, Schemas, kinds_of

COPIED_BYTES: Final = 64 << 10
"""Size of all parts of one schema together that may be copied."""
COPIED_DEPTH: Final = 64
"""Depth of lists and objects in what copies add. An allOf inside what it joins would nest ever deeper."""
_BITS: Final = {name: bits for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")} | {
    "int": 64,
    "uint": 64,
}
"""Formats of OpenAPI and of Rust's schemars."""
_MOST, _MOST_OF_NUMBERS = (1 << 63) - 1, (1 << 63) - 1024
"""xgrammar reads bounds of 64 bits, and those of `number` as numbers of 53 bits with an exponent."""
_ANY_NUMBER: Final = ("float", "double", "decimal")
_LABELS: Final = frozenset(
    (
        *("regex", "starts_with", "ends_with", "includes", "lowercase", "uppercase", "hex", "nanoid", "cuid", "cuid2"),
        *("ulid", "xid", "ksuid", "cidrv4", "cidrv6", "base64", "base64url", "e164", "jwt", "emoji"),
    )
)
"""Names by which zod 4 calls patterns, and which it writes as `format` beside them. JSON Schema knows none of them."""
_DAY: Final = (
    r"(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))"
)
_SECONDS: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_FRACTIONS: Final = ("", r"(?:\.\d+)?", *(rf"\.\d{{{digits}}}" for digits in range(1, 10)))
_ZONE: Final = r"(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_ZONES: Final = ("Z", r"Z|([+-](?:[01]\d|2[0-3]):[0-5]\d)")
_HEX: Final = "[0-9a-fA-F]"
_UUIDS: Final = {
    f"uuid{version}": f"^({_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}})$"
    for version in range(1, 9)
}
"""Formats of pydantic, each with the pattern of zod 4."""
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])"
_IPV4: Final = rf"^(?:{_BYTE}\.){{3}}{_BYTE}$"
_GROUP: Final = f"{_HEX}{{1,4}}"
_IPV6: Final = (
    f"^(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|({_GROUP}:){{1,6}}:{_GROUP}|({_GROUP}:){{1,5}}(:{_GROUP}){{1,2}}|"
    f"({_GROUP}:){{1,4}}(:{_GROUP}){{1,3}}|({_GROUP}:){{1,3}}(:{_GROUP}){{1,4}}|({_GROUP}:){{1,2}}(:{_GROUP}){{1,5}}|"
    f"{_GROUP}:((:{_GROUP}){{1,6}})|:((:{_GROUP}){{1,7}}|:))$"
)
_LABEL: Final = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_AS_PATTERNS: Final = _UUIDS | {
    "hostname": rf"^{_LABEL}(?:\.{_LABEL})*$",
    "date": f"^{_DAY}$",
    "date-time": rf"^{_DAY}T{_SECONDS}(?:\.\d{{1,9}})?{_ZONE}$",
    "time": rf"^{_SECONDS}(?:\.\d{{1,9}})?{_ZONE}$",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
}
IMPLY: Final[Mapping[str, frozenset[str]]] = {
    "date": frozenset((f"^{_DAY}$",)),
    "date-time": frozenset(
        f"^{_DAY}T(?:{_SECONDS}{fraction}(?:{zone}))$" for fraction in _FRACTIONS for zone in _ZONES
    ),
    "email": frozenset(
        (r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",)
    ),
    "uuid": frozenset(
        (
            f"^({_HEX}{{8}}-{_HEX}{{4}}-[1-8]{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}|"
            "00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$",
            f"^({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})$",
            *_UUIDS.values(),
        )
    ),
    "ipv4": frozenset((_IPV4,)),
    "ipv6": frozenset((_IPV6,)),
}
"""Patterns of zod 4 that only texts of a format match. It writes both."""
_PLAIN_OBJECT: Final = NOTES | {"type", "properties", "required"}


class Rewriter:
    """Rewrites the schemas of one root, in place."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._left = COPIED_BYTES
        self._copied: dict[int, tuple[Any, int]] = {}
        """What copies consist of, by id, with its depth."""

    def rewrite(self, node: dict[str, Any]) -> None:
        """Rewrite one schema, but not the schemas below it."""
        _read_tuple(node)
        _bound_number(node)
        pattern, form = node.get("pattern"), node.get("format")
        is_alone = node.keys().isdisjoint(("pattern", "maxLength")) and node.get("minLength", 1) == 1
        if isinstance(form, str) and form in _AS_PATTERNS and is_alone:
            node["pattern"] = _AS_PATTERNS[form]
            del node["format"]
            node.pop("minLength", None)  # no text of these is empty
        elif isinstance(pattern, str) and isinstance(form, str) and (form in _LABELS or pattern in IMPLY.get(form, ())):
            del node["format"]
        if isinstance(node.get("anyOf"), list) and isinstance(node.get("type"), str):
            for arm in node["anyOf"]:
                if isinstance(arm, dict) and arm.keys().isdisjoint(("type", "$ref", "anyOf", "oneOf", "allOf")):
                    arm["type"] = node["type"]
        if self._left < 0:
            return  # each schema could read the same large ones again
        if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
            self._join_objects(node)
        if isinstance(node.get("propertyNames"), dict):
            self._name_properties(node, node["propertyNames"])

    def _copy(self, node: dict[str, Any], schema: Any, times: int = 1) -> list[Any]:
        """Returns copies of a schema for `node`; none if they are too large, or would stand too deep."""
        self._left -= len(json.dumps(schema)) * times
        _, depth = self._copied.get(id(node), (node, 0))
        if self._left < 0 or any(depth + below > COPIED_DEPTH for _, below in _walk(schema)):
            return []
        copies = [copy.deepcopy(schema) for _ in range(times)]
        for one in copies:
            self._copied |= {id(found): (found, depth + below) for found, below in _walk(one)}
        return copies

    def _join_objects(self, node: dict[str, Any]) -> None:
        """Write allOf of objects that allow other properties as one object."""
        arms = [self._schemas.follow(arm, alone=True) for arm in node["allOf"]]
        properties: dict[str, Any] = {}
        required: list[str] = []
        for arm in arms:
            if arm is None or arm.get("type") != "object" or not arm.keys() <= _PLAIN_OBJECT:
                return
            own, needed = arm.get("properties", {}), arm.get("required", [])
            if not isinstance(own, dict) or not isinstance(needed, list):
                return
            self._left -= len(own) + len(needed)  # each arm may be the same large one
            if self._left < 0 or not properties.keys().isdisjoint(own):
                return
            properties |= own
            required += needed
        if node.get("type", "object") != "object" or not node.keys().isdisjoint(("properties", "required")):
            return
        if node.get("additionalProperties", True) is not True:
            return  # beside allOf it is about every property, because the node itself names none
        if copied := self._copy(node, properties):
            del node["allOf"]
            node |= {"type": "object", "properties": copied[0], "required": required}

    def _name_properties(self, node: dict[str, Any], names: dict[str, Any]) -> None:
        found = self._schemas.follow(names, alone=True)
        if found is None:
            return
        if "$ref" in names and (copied := self._copy(node, found)):
            node["propertyNames"] = copied[0]
        values = [found["const"]] if "const" in found else found.get("enum")
        if not isinstance(values, list) or kinds_of(found.get("type", "string")) != {"string"}:
            return
        if not found.keys() <= NOTES | {"type", "const" if "const" in found else "enum"}:
            return
        self._left -= len(values)
        allowed = list(dict.fromkeys(value for value in values if isinstance(value, str)))
        rest = node.get("additionalProperties", {})
        if not allowed or rest is False or not node.keys().isdisjoint(("properties", "patternProperties")):
            return
        if copied := self._copy(node, {} if rest is True else rest, len(allowed)):
            del node["propertyNames"]
            node |= {
                "type": node.get("type", "object"),
                "properties": dict(zip(allowed, copied, strict=True)),
                "additionalProperties": False,
            }


def _walk(schema: Any) -> Iterator[tuple[Any, int]]:
    """Yields the lists and objects of a schema, with their depths."""
    waiting = [(schema, 1)]
    while waiting:
        found, depth = waiting.pop()
        if isinstance(found, dict | list):
            yield found, depth
            waiting.extend((one, depth + 1) for one in (found.values() if isinstance(found, dict) else found))


def _read_tuple(node: dict[str, Any]) -> None:
    if isinstance(node.get("items"), list) and "prefixItems" not in node:
        node["prefixItems"] = node.pop("items")
        if "additionalItems" in node:
            node["items"] = node.pop("additionalItems")


def _bound_number(node: dict[str, Any]) -> None:
    form = node.get("format")
    if not isinstance(form, str) or "string" in kinds_of(node.get("type")):
        return
    if form in _ANY_NUMBER:
        del node["format"]
    elif form in _BITS:
        limit = _MOST_OF_NUMBERS if "number" in kinds_of(node.get("type")) else _MOST
        most = min((1 << (_BITS[form] - (form[0] != "u"))) - 1, limit)
        least = 0 if form[0] == "u" else max(-most - 1, -limit)
        low = [node[name] for name in ("minimum", "exclusiveMinimum") if name in node]
        high = [node[name] for name in ("maximum", "exclusiveMaximum") if name in node]
        if all(isinstance(value, int | float) for value in low + high):
            del node["format"]
            if not low or max(low) < least:
                node.pop("exclusiveMinimum", None)
                node["minimum"] = least
            if not high or min(high) > most:
                node.pop("exclusiveMaximum", None)
                node["maximum"] = most
