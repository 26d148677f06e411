"""Checks a pipeline as the API server would, without a server, for every command that reads a file.

The checks come from the generated CRD's schema and run in the API server's order. First, nulls are dropped and defaults
filled in. Then types and bounds (with jsonschema) and the keys of lists are checked, and finally the CEL rules (with a
CEL library). tests/controlplane compares the results with a real API server.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from omni_proto.pipeline.crd.crd import object_schema
from omni_proto.pipeline.crd.schema import Schema
from omni_proto.pipeline.problems import FieldPath, PipelineError, Problem, format_path
from omni_proto.pipeline.read.cel import evaluate
from omni_proto.pipeline.read.explain import NO_SPACE, explain
from omni_proto.pipeline.read.load import parse_document, read_file, type_document
from omni_proto.pipeline.types.object_meta import OBJECT_META_SCHEMA
from omni_proto.pipeline.types.resource import API_VERSION, KIND, OmniPipeline


def load_checked(path: str | Path) -> OmniPipeline:
    """Read the pipeline file at path and check it as the API server would. Raises PipelineError."""
    return parse_checked(read_file(Path(path)), source=str(path))


def parse_checked(text: str, *, source: str = "pipeline") -> OmniPipeline:
    """Parse YAML or JSON text that holds one OmniPipeline and check it as the API server would.

    Raises PipelineError with every wrong field. A rule between fields is checked only if those fields are valid.
    """
    written = parse_document(text, source)
    document = fill_in(written)
    if problems := [*_keys_with_values(object_schema(), written, ()), *check_document(document)]:
        raise PipelineError(source, problems)
    return type_document(document, source)


def _keys_with_values(schema: Schema, value: Any, path: FieldPath) -> Iterator[Problem]:
    """Yields the keys of maps that contain their values, such as `nvidia.com/gpu:1`.

    The API server drops such keys, because their value is null. The stage would then run without a GPU.
    """
    for part, child, item in _children(schema, value):
        if item is None and ":" in str(part):
            yield Problem(format_path((*path, part)), f"has no value; {NO_SPACE}")
        yield from _keys_with_values(child, item, (*path, part))


def check_document(document: Mapping[str, Any]) -> list[Problem]:
    """Returns all problems of a document whose defaults are filled in; empty if the API server would accept it."""
    schema = object_schema()
    wrong = [
        found
        for error in _validator().iter_errors(document)
        # The API server checks a status only for unknown fields, and then drops it.
        if error.validator == "additionalProperties" or "status" not in error.absolute_path
        for found in explain(error)
    ]
    document = {name: value for name, value in document.items() if name != "status"}
    wrong += _repeated(schema, document, ())
    # A rule reads the fields below it. If one of them is wrong already, the rule is skipped.
    skip = {path[:length] for path, _ in wrong for length in range(len(path) + 1)}
    wrong += _broken_rules(schema, document, (), skip)
    # Rules on the whole object concern its name: Kubernetes lets them read no other metadata.
    wrong = [(path or ("metadata", "name"), words) for path, words in wrong]
    wrong.sort(key=lambda found: _position(document, found[0]))
    return list(dict.fromkeys(Problem(format_path(path), words) for path, words in wrong))


def _position(value: Any, path: FieldPath) -> list[int]:
    """Returns a sort key: the position of a field in the document. Missing fields come last."""
    places: list[int] = []
    for part in path:
        keys = list(value) if isinstance(value, Mapping) else list(range(len(value)))
        if part not in keys:
            return [*places, len(keys)]
        places.append(keys.index(part))
        value = value[part]
    return places


def fill_in(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy as the API server would store it: nulls dropped, defaults filled in."""
    filled: dict[str, Any] = _fill_in(object_schema(), dict(document))
    return filled


def _fill_in(schema: Schema, value: Any) -> Any:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties", {})
        filled = {
            name: _fill_in(known.get(name, rest), item)
            # The API server returns the keys of a map sorted.
            for name, item in (sorted(value.items()) if rest else value.items())
            if item is not None or not (name in known or rest)
        }
        for name, child in known.items():
            if name not in filled and "default" in child:
                filled[name] = _fill_in(child, copy.deepcopy(child["default"]))
        return filled
    if isinstance(value, list):
        return [_fill_in(schema.get("items", {}), item) for item in value]
    return value


@cache
def _validator() -> jsonschema.Draft202012Validator:
    schema = _to_json_schema(object_schema())
    schema["properties"] |= {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": KIND},
        "metadata": OBJECT_META_SCHEMA,
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return jsonschema.Draft202012Validator(schema)


def _to_json_schema(schema: Schema) -> Schema:
    """Returns a structural schema as JSON Schema: unknown fields refused, exclusive bounds as numbers, `$` as `\\Z`."""
    out = {name: value for name, value in schema.items() if not name.startswith("x-")}
    for bound in ("minimum", "maximum"):
        if out.pop(f"exclusive{bound.capitalize()}", False):
            out[f"exclusive{bound.capitalize()}"] = out.pop(bound)
    if "pattern" in out:
        out["pattern"] = out["pattern"].removesuffix("$") + r"\Z"
    if "properties" in out:
        out["properties"] = {name: _to_json_schema(child) for name, child in out["properties"].items()}
        out["additionalProperties"] = False
    elif "additionalProperties" in out:
        out["additionalProperties"] = _to_json_schema(out["additionalProperties"])
    if "items" in out:
        out["items"] = _to_json_schema(out["items"])
    return out


def _children(schema: Schema, value: Any) -> Iterator[tuple[str | int, Schema, Any]]:
    """Yields the direct children of a value: the key or index of each, its schema and its value."""
    if isinstance(value, Mapping):
        known = schema.get("properties", {})
        for name, item in value.items():
            if child := known.get(name, schema.get("additionalProperties")):
                yield name, child, item
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield index, schema.get("items", {}), item


def _repeated(schema: Schema, value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    """Yields the repeated items of lists whose items must be unique."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if isinstance(value, list) and schema.get("x-kubernetes-list-type") in ("map", "set"):
        seen = []
        for index, item in enumerate(value):
            if keys and not (isinstance(item, Mapping) and all(key in item for key in keys)):
                continue
            identity = [item[key] for key in keys] if keys else item
            if identity in seen:
                shown = ", ".join(f"{key} {json.dumps(item[key])}" for key in keys) if keys else json.dumps(item)
                yield (*path, index), f"repeats {shown}; each may be there once"
            seen.append(identity)
    for part, child, item in _children(schema, value):
        yield from _repeated(child, item, (*path, part))


def _broken_rules(
    schema: Schema, value: Any, path: FieldPath, skip: Container[FieldPath]
) -> Iterator[tuple[FieldPath, str]]:
    for rule in schema.get("x-kubernetes-validations", ()) if path not in skip else ():
        if evaluate(rule["rule"], value) is not True:
            below = [part for part in rule.get("fieldPath", "").split(".") if part]
            yield (*path, *below), _message(rule, value)
    for part, child, item in _children(schema, value):
        yield from _broken_rules(child, item, (*path, part), skip)


def _message(rule: Mapping[str, str], value: Any) -> str:
    text = str(evaluate(rule["messageExpression"], value)).strip() if "messageExpression" in rule else ""
    return text if text and "\n" not in text else rule["message"]
