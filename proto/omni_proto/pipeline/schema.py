"""Converts types to a structural schema: the part of OpenAPI v3 that a CustomResourceDefinition supports.

tools/export_schemas.py writes it into the CRD, and read/offline.py checks files with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from omni_proto.pipeline.rules.all_rules import RULES, TEXT_RULES
from omni_proto.pipeline.rules.graph import OBJECT_RULES
from omni_proto.pipeline.rules.rule import Rule, keys_match
from omni_proto.pipeline.types.forms import KEY_FORMS
from omni_proto.pipeline.types.resource import API_VERSION, KIND, Metadata, OmniPipeline, PipelineSpec
from omni_proto.pipeline.types.status import PipelineStatus

Schema: TypeAlias = dict[str, Any]

_COPIED: Final = (
    *("type", "format", "enum", "minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern"),
    *("minItems", "maxItems", "maxProperties", "required"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
)
# `additionalProperties: false` is left out: a structural schema implies it, and kubectl's `--validate` enforces it.
_HANDLED: Final = {
    *_COPIED,
    *("title", "description", "default", "const", "anyOf", "exclusiveMinimum", "exclusiveMaximum"),
    *("items", "properties", "additionalProperties", "patternProperties", "propertyNames"),
    *("x-rules", "x-server-default"),
}


@cache
def object_schema() -> Schema:
    """Returns the schema of a whole OmniPipeline. The result is cached: do not change it."""
    return {
        "description": " ".join((OmniPipeline.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"description": f"Version of the API: {API_VERSION}", "type": "string"},
            "kind": {"description": f"Kind of the object: {KIND}", "type": "string"},
            # The name is the only field of metadata that Kubernetes lets a CRD restrict.
            "metadata": {
                "type": "object",
                "properties": {"name": structural_schema(Metadata)["properties"]["name"]},
            },
            "spec": structural_schema(PipelineSpec),
            # kstatus takes a resource without a status for done. No generation is 0.
            "status": structural_schema(PipelineStatus) | {"default": {"observedGeneration": 0}},
        },
        "x-kubernetes-validations": [rule.to_schema() for rule in OBJECT_RULES],
    }


def structural_schema(model: type[BaseModel]) -> Schema:
    """Returns the schema of a type: descriptions, bounds, defaults, list types and CEL rules; $refs are inlined.

    Raises ValueError if the type uses something that a structural schema cannot express.
    """
    whole = model.model_json_schema(by_alias=True, mode="validation")
    definitions = whole.pop("$defs", {})
    rules = {owner.__name__: own for owner, own in RULES.items()}
    return _walk({**whole, "x-rules": rules.get(model.__name__, ())}, lambda ref: _lookup(ref, definitions, rules))


def _lookup(ref: str, definitions: Mapping[str, Schema], rules: Mapping[str, tuple[Rule, ...]]) -> Schema:
    name = ref.rsplit("/", 1)[1]
    return {**definitions[name], "x-rules": rules.get(name, ())}


def _walk(node: Schema, lookup: Callable[[str], Schema]) -> Schema:
    node = resolve(node, lookup)
    if lost := set(node) - _HANDLED:
        raise ValueError(f"a structural schema has no {', '.join(sorted(lost))}: {node}")
    out: Schema = {}
    rules = list(node.get("x-rules", ()))
    default = whole(node.get("default"))
    if "description" in node:
        out["description"] = _describe(node["description"], default)
    if "anyOf" in node:
        out |= _int_or_string(node["anyOf"])
    out |= {name: node[name] for name in _COPIED if name in node}
    out |= {name: exact_bound(out[name]) for name in ("minimum", "maximum") if name in out}
    if "const" in node:
        out["enum"] = [node["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in node:
            out |= {bound.lower(): node[f"exclusive{bound}"], f"exclusive{bound}": True}
    if text_rules := TEXT_RULES.get(out.get("pattern", "")):
        del out["pattern"]
        rules += text_rules
    if default is not None and (not isinstance(default, dict) or node.get("x-server-default")):
        out["default"] = default
    if "items" in node:
        out = {"x-kubernetes-list-type": "atomic", **out, "items": _walk(node["items"], lookup)}
    if "properties" in node:
        out["properties"] = {name: _walk(child, lookup) for name, child in node["properties"].items()}
    elif values := map_values(node):
        out["additionalProperties"] = _walk(values, lookup)
        if "patternProperties" in node:
            ((pattern, _),) = node["patternProperties"].items()
            rules.append(keys_match(pattern, node["propertyNames"]["maxLength"], KEY_FORMS[pattern]))
    if rules:
        out["x-kubernetes-validations"] = [rule.to_schema() for rule in rules]
    return out


def _describe(text: str, default: Any) -> str:
    """Returns the description on one line, with the default, which `kubectl explain` does not show by itself."""
    text = " ".join(text.split())
    if default is None or isinstance(default, dict | list) or "Default:" in text:
        return text
    return f"{text} Default: {json.dumps(default).strip(chr(34))}."


def whole(value: Any) -> Any:
    """Returns the value with whole floats as integers, so that JSON shows 300 and not 300.0."""
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def exact_bound(bound: float) -> float:
    """Returns the bound, or the next number towards 0 that the API server keeps, and prints with the same digits.

    It stores bounds as float64: 2^63-1 would become 2^63, which it reads as negative and refuses all values. And it
    prints the shortest digits that mean the same float64: other digits would show as drift in a GitOps tool.
    """
    while isinstance(bound, int) and Decimal(repr(float(bound))) != bound:
        bound = int(math.nextafter(bound, 0))
    return bound


def map_values(node: Schema) -> Schema | None:
    """Returns the schema of the values of a map, or None; pydantic writes keys with a pattern as patternProperties."""
    if "patternProperties" in node:
        (values,) = node["patternProperties"].values()
        return dict(values)
    values = node.get("additionalProperties")
    return values if isinstance(values, dict) else None


def resolve(node: Schema, lookup: Callable[[str], Schema]) -> Schema:
    """Returns the node with $ref and Optional resolved. The field's own description replaces the description of its
    type."""
    while True:
        if "$ref" in node:
            inner = lookup(node["$ref"])
        elif len(choices := [item for item in node.get("anyOf", ()) if item != {"type": "null"}]) == 1:
            (inner,) = choices
        else:
            return node
        node = {**inner, **{name: value for name, value in node.items() if name not in ("$ref", "anyOf")}}


def _int_or_string(choices: list[Schema]) -> Schema:
    kinds = {choice.get("type"): choice for choice in choices if choice != {"type": "null"}}
    if set(kinds) != {"integer", "string"}:
        raise ValueError(f"a structural schema has no union of {sorted(map(str, kinds))}")
    bounds = {name: value for kind in kinds.values() for name, value in kind.items() if name not in ("type", "title")}
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True, **bounds}
