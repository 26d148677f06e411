"""Proves facts about the values that fit JSON Schemas: their types, and that no value fits two of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

NOTES: Final = frozenset(("title", "description"))
"""Keywords for people, which limit no value."""
_MOST_HOPS: Final = 16
"""Maximum number of references and nested alternatives that a proof follows."""
MOST_STEPS: Final = 300_000
"""Maximum number of schemas, names and values that the proofs about one root compare (0.5 s). References make schemas
of a few lines stand for exponentially many alternatives."""


class Schemas:
    """The schemas of one root."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = MOST_STEPS
        self._known: dict[int, tuple[Mapping[str, Any], frozenset[Any] | None]] = {}
        """Schemas and their values, by the schema's id."""

    def find(self, reference: str) -> Any:
        """Returns the schema that a local reference names; None if xgrammar would not find it."""
        if reference == "#":
            return self._root
        if not reference.startswith("#/") or not {"~", "%"}.isdisjoint(reference):
            return None
        found = self._root
        for name in reference[2:].split("/"):
            found = found.get(name) if name and isinstance(found, Mapping) else None
        return found if isinstance(found, dict | bool) else None

    def fits_type(self, schema: Mapping[str, Any]) -> bool:
        """Returns whether `type` excludes none of the values of the schema's other keywords."""
        allowed = kinds_of(schema["type"])
        kinds = self._kinds({name: value for name, value in schema.items() if name != "type"})
        return kinds is not None and all(
            kind in allowed or (kind == "integer" and "number" in allowed) for kind in kinds
        )

    def are_disjoint(self, one: Any, other: Any, hops: int = 0) -> bool:
        """Returns whether it is certain that no value fits both schemas. False if a proof takes too many steps."""
        if hops > _MOST_HOPS or not self._take(1):
            return False
        one, other = self.follow(one), self.follow(other)
        if one is None or other is None:
            return False
        for first, second in ((one, other), (other, one)):
            arms = first.get("anyOf") or first.get("oneOf")
            if isinstance(arms, list):
                return all(self.are_disjoint(arm, second, hops + 1) for arm in arms)
        kinds, others = self._kinds(one), self._kinds(other)
        if kinds is not None and others is not None and _widened(kinds).isdisjoint(_widened(others)):
            return True
        if self._values(one) is not None and self._values(other) is not None:
            return self._have_other_values(one, other)
        return kinds == others == {"object"} and self._differ_in_a_property(one, other)

    def _differ_in_a_property(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        names, others = _strings(one.get("required")), _strings(other.get("required"))
        if not self._take(len(names) + len(others)):
            return False
        known = set(others)
        for name in (name for name in dict.fromkeys(names) if name in known):
            first, second = _get(one.get("properties"), name), _get(other.get("properties"), name)
            if self._have_other_values(self.follow(first), self.follow(second)):
                return True
        return False

    def _have_other_values(self, one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
        """Returns whether both schemas list their values, and none twice."""
        if one is None or other is None:
            return False
        values, more = self._values(one), self._values(other)
        if values is None or more is None or not self._take(min(len(values), len(more))):
            return False
        return values.isdisjoint(more)

    def _values(self, schema: Mapping[str, Any]) -> frozenset[Any] | None:
        """Returns the values that fit a schema with const or enum, in a form in which equal values are equal."""
        if id(schema) not in self._known:
            listed = [schema["const"]] if "const" in schema else schema.get("enum")
            values = frozenset(map(_plain, listed)) if isinstance(listed, list) else None
            self._known[id(schema)] = (schema, values)
        return self._known[id(schema)][1]

    def _take(self, steps: int) -> bool:
        """Count steps. Returns whether there were enough left."""
        self._steps -= steps
        return self._steps >= 0

    def follow(self, schema: Any, *, alone: bool = False) -> Mapping[str, Any] | None:
        """Returns the schema that references and allOf of one schema lead to; None if there is none, or too far.

        What stands beside a reference limits values further, so the schema itself may allow more. alone: then None.
        """
        for _ in range(_MOST_HOPS):
            if not isinstance(schema, Mapping) or not self._take(1):
                return None
            if isinstance(schema.get("$ref"), str):
                self._take(schema["$ref"].count("/"))
                step, target = "$ref", self.find(schema["$ref"])
            elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
                step, target = "allOf", schema["allOf"][0]
            else:
                return schema
            if alone and not schema.keys() <= NOTES | {step}:
                return None
            schema = target
        return None

    def _kinds(self, schema: Any, hops: int = 0) -> set[str] | None:
        """Returns the types of the values that may fit; None if that is not known."""
        schema = self.follow(schema)
        if schema is None or hops > _MOST_HOPS:
            return None
        if "const" in schema:
            return {_kind(schema["const"])}
        if isinstance(schema.get("enum"), list):
            return {_kind(value) for value in schema["enum"]} if self._take(len(schema["enum"])) else None
        arms = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(arms, list):
            found: set[str] = set()
            for arm in arms:
                kinds = self._kinds(arm, hops + 1)
                if kinds is None:
                    return None
                found |= kinds
            return found
        if "type" in schema:
            return kinds_of(schema["type"])
        # As xgrammar infers it.
        if any(name in schema for name in ("properties", "additionalProperties", "unevaluatedProperties")):
            return {"object"}
        return None


def kinds_of(given: Any) -> set[str]:
    """Returns the types in the value of "type"."""
    return set(_strings(given if isinstance(given, list) else [given]))


def _strings(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _get(mapping: Any, name: str) -> Any:
    return mapping.get(name) if isinstance(mapping, Mapping) else None


def _widened(kinds: set[str]) -> set[str]:
    return kinds | {"number"} if "integer" in kinds else kinds


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return ("array", tuple(map(_plain, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, _plain(item)) for name, item in value.items()))
    return value
