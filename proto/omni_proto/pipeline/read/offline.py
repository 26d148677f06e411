"""Checks a pipeline as the API server would, without a server, for every command that reads a file.

The checks come from the generated CRD's schema and run in the API server's order. First, nulls are dropped and defaults
filled in. Then types and bounds (with jsonschema) and the keys of lists are checked, and finally the CEL rules (with a
CEL library). tests/controlplane compares the results with a real API server.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import cel
import jsonschema

from omni_proto.errors import OmniProtoError
from omni_proto.pipeline.problems import FieldPath, PipelineError, Problem, format_path
from omni_proto.pipeline.read.explain import NO_SPACE, explain
from omni_proto.pipeline.read.load import parse_document, read_file, type_document
from omni_proto.pipeline.schema import Schema, object_schema
from omni_proto.pipeline.types import kubernetes as k8s
from omni_proto.pipeline.types.resource import API_VERSION, KIND, OmniPipeline


def load_checked(path: str | Path) -> OmniPipeline:
    """Read the pipeline file at path and check it as the API server would. Raises PipelineError."""
    return parse_checked(read_file(Path(path)), source=str(path))


def parse_checked(text: str, *, source: str = "pipeline") -> OmniPipeline:
    """Parse YAML or JSON text that holds one OmniPipeline and check it as the API server would.

    Raises PipelineError with every wrong field. A rule between fields is checked only if those fields are valid.
    """
    return check_typed(parse_document(text, source), source)


def check_typed(written: Mapping[str, Any], source: str) -> OmniPipeline:
    """Check a document as parse_checked does. Returns the typed pipeline. Raises PipelineError."""
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


class RuleError(OmniProtoError, RuntimeError):
    """An expression could not be evaluated: a fault of this package, not of the pipeline."""


def evaluate(expression: str, value: Any) -> Any:
    """Returns the result of a CEL expression in which `self` is the value. Raises RuleError."""
    try:
        return _compile(expression).execute(cel.Context({"self": value}, _FUNCTIONS))
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        raise RuleError(f"{expression}: {error}") from error


@cache
def _compile(expression: str) -> cel.Program:
    return cel.compile(expression)


def _index_of(items: Sequence[Any], item: Any) -> int:
    """Returns the index of the first item equal to `item`, or -1: Kubernetes' list.indexOf(item)."""
    return list(items).index(item) if item in items else -1


def _format(template: str, arguments: Sequence[Any]) -> str:
    """Returns the template with its %s and %d replaced: Kubernetes' text.format(list)."""
    rest = iter(arguments)
    return re.sub(r"%[sd]", lambda match: _show(next(rest)), template)


def _show(value: Any) -> str:
    """Returns a value as text. As in Kubernetes, texts are quoted only inside lists."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(json.dumps(item) if isinstance(item, str) else _show(item) for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


_SUFFIXES: Final = {
    "m": 1e-3,
    "": 1.0,
    **{letter: 1e3**power for power, letter in enumerate("kMGTP", start=1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)},
}


def _quantity(text: str) -> float:
    """Returns a quantity as a plain number: 500m is 0.5. Replaces Kubernetes' quantity(text)."""
    number = text.rstrip("mkMGTPKi")
    return float(number) * _SUFFIXES[text[len(number) :]]


def _compare_to(one: float, other: float) -> int:
    return (one > other) - (one < other)


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "indexOf": _index_of,
    "format": _format,
    "quantity": _quantity,
    "compareTo": _compare_to,
    "asApproximateFloat": float,
    "isInteger": float.is_integer,
    "asInteger": int,
    "substring": lambda text, start: text[start:],
}


_KEY: Final = {"pattern": k8s.LABEL_KEY_PATTERN.removesuffix("$") + r"\Z", "maxLength": 317}
_VALUE: Final = {"type": "string", "pattern": k8s.LABEL_VALUE_PATTERN.removesuffix("$") + r"\Z", "maxLength": 63}

OBJECT_META_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "namespace": {
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "pattern": k8s.NAMESPACE_PATTERN.removesuffix("$") + r"\Z",
        },
        "labels": {"type": ["object", "null"], "propertyNames": _KEY, "additionalProperties": _VALUE},
        "annotations": {
            "type": ["object", "null"],
            # Unlike in the keys of labels, the domain may contain upper-case letters.
            "propertyNames": {**_KEY, "pattern": f"(?i){_KEY['pattern']}"},
            "additionalProperties": {"type": "string"},
        },
        "finalizers": {"type": ["array", "null"], "items": {"type": "string"}},
        "ownerReferences": {"type": ["array", "null"], "items": {"type": "object"}},
        # Fields that the API server writes; files exported from it contain them.
        **{
            name: {}
            for name in (
                "creationTimestamp",
                "deletionGracePeriodSeconds",
                "deletionTimestamp",
                "generateName",
                "generation",
                "managedFields",
                "resourceVersion",
                "selfLink",
                "uid",
            )
        },
    },
    "additionalProperties": False,
}
"""JSON schema of metadata (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/)."""
