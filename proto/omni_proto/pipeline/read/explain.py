"""Translates jsonschema's errors into messages that say what to do."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import jsonschema
from pydantic.alias_generators import to_camel

from omni_proto.pipeline.components import built_in_components
from omni_proto.pipeline.problems import FieldPath
from omni_proto.pipeline.types.forms import FORMS
from omni_proto.pipeline.types.kubernetes import QUANTITY_PATTERN
from omni_proto.stage_config import COMPONENT_PATTERN

_TYPE_WORDS: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}


def explain(error: jsonschema.ValidationError) -> Iterator[tuple[FieldPath, str]]:
    """Yields the problems in one error of jsonschema, as path and message."""
    path = tuple(error.absolute_path)
    if error.validator == "required":
        # jsonschema reports one error for each missing field, but does not name the field.
        for name in error.validator_value:
            if name not in error.instance:
                yield (*path, name), "is missing"
    elif error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for name in error.instance:
            if name not in known:
                yield (*path, name), f"unknown field; {_suggest(name, list(known))}"
    elif error.validator != "type" or "enum" not in error.schema:  # the enum's error covers it
        words = _WORDS.get(str(error.validator))
        found = words(error.validator_value, error.instance) if words else error.message
        keys = ", ".join(error.schema.get("properties", ()))
        yield path, f"{found}; its keys are {keys}" if error.validator == "type" and keys else found


_FIELD_HINTS: Final = {
    "tensorparallelsize": 'the GPU count is the tensor parallel size: resources.limits["nvidia.com/gpu"]',
    "gpu": 'GPUs are counted by resources.limits["nvidia.com/gpu"]',
    "gpus": 'GPUs are counted by resources.limits["nvidia.com/gpu"]',
    "storageuri": "the checkpoint is named by uri",
    "resources": "resources are set for each stage: stages[].resources",
    "media": "limits of media are set once for the pipeline: spec.media",
    "predictor": "the parts of the model are listed under spec.stages",
    "stage": "the upstream stage is named by from",
    "secretkeyref": "give its name and key directly",
    "tlssecret": "the Secret of the certificate is tls.secretName",
    "securitycontext": "user and groups are set by podSecurityContext; everything else of it is set by the operator",
    "extravolumes": "volumes are set by volumes and volumeMounts",
    **dict.fromkeys(("classname", "parentrefs", "httproute", "grpcroute"), "a route is spec.entry.route"),
    "backendtlspolicy": "TLS behind a route is spec.entry.route.gatewayApi.backendTls",
    "extraenv": "variables are set by env and envFrom",
    **dict.fromkeys(("autoscaling", "minreplicas", "maxreplicas"), "pods follow the load by stages[].scaling"),
    **dict.fromkeys(
        ("port", "servicetype", "ingress"),
        "clients connect to the Service with the pipeline's name, port 50051, of the type spec.entry.service.type, or "
        "through spec.entry.route; for HTTP use the gateway",
    ),
    **dict.fromkeys(
        ("args", "command", "livenessprobe", "readinessprobe", "startupprobe"),
        "only the operator sets it",
    ),
}
"""Hints for fields of other systems, by the name in lower case without underscores and dashes."""
_OTHER_NAMES: Final = {
    "half": "float16",
    "fp16": "float16",
    "float": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
}
"""The API's names of values, by their names in other systems."""


_NUMBER_HINTS: Final = (
    (r"-?\d+(\.\d+)?", "; remove the quotes"),
    (r"\d+(\.\d+)?(ms|s|m|h)", "; times are numbers of seconds, without a unit"),
    (r"\d+(\.\d+)?[kKMGT]i?[bB]?", "; give the number without a unit, in the unit that the field's description names"),
)
"""Hints for a text where a number is needed, by the form of the text."""
NO_SPACE: Final = "YAML needs a space after the colon: KEY: VALUE"
"""Hint for a key that contains its value: YAML reads `{from:thinker}` as the key `from:thinker` without a value."""


def _suggest(name: str, known: list[str]) -> str:
    if ":" in name:
        return NO_SPACE
    if hint := _FIELD_HINTS.get(name.replace("_", "").replace("-", "").lower()):
        return hint
    close = difflib.get_close_matches(to_camel(name), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _wrong_type(expected: str | list[str], value: Any) -> str:
    kind = expected if isinstance(expected, str) else expected[0]
    if kind == "string" and isinstance(value, bool | int | float):
        return f"must be text; put quotes around {_show(value)}"
    if kind in ("integer", "number", "boolean") and isinstance(value, str):
        hints = [hint for pattern, hint in _NUMBER_HINTS if kind != "boolean" and re.fullmatch(pattern, value)]
        return f"must be {_TYPE_WORDS[kind]}, found the text {_show(value)}{''.join(hints[:1])}"
    if kind == "array" and isinstance(value, str):
        return f"must be a list, found {_show(value)}; write [{value}]"
    return f"must be {_TYPE_WORDS[kind]}, found {_show(value)}"


def _wrong_pattern(pattern: str, value: Any) -> str:
    words = FORMS.get(pattern.removeprefix("(?i)").removesuffix(r"\Z") + "$", f"text that matches {pattern}")
    near_of = {FORMS[COMPONENT_PATTERN]: _component_near, FORMS[QUANTITY_PATTERN]: _quantity_near}.get(words)
    near = near_of(value) if near_of else ""
    return f"must be {words}, found {_show(value)}" + (f"; did you mean {near}?" if near else "")


def _component_near(value: str) -> str:
    """Returns the built-in component that was probably meant; empty if none is near."""
    meant = re.sub(r"[^a-z0-9/]+", "_", value[:256].lower())
    return next(iter(difflib.get_close_matches(meant, list(built_in_components()), n=1)), "")


def _quantity_near(value: str) -> str:
    """Returns the quantity that was probably meant; empty if none is near."""
    found = re.fullmatch(r"\+?(\d{0,15})([.,]\d{1,9})? ?(?:e\+?(\d)|([kmgtp]i?)b?)?", value[:32].lower(), re.ASCII)
    if found is None or not (found[1] or found[2]):
        return ""
    number = f"{found[1] or 0}{(found[2] or '').replace(',', '.')}"
    if found[3]:
        return f"{Decimal(number).scaleb(int(found[3])).normalize():f}"
    unit = found[4] or ""
    # A lower-case m alone is a thousandth, and k is never written K.
    return number + (unit if unit == "k" or value.endswith("m") else unit.capitalize())


def _not_a_choice(choices: list[Any], value: Any) -> str:
    other = _OTHER_NAMES.get(value) if isinstance(value, str) else None
    hint = f"; {value} is {other}" if other in choices else ""
    if not hint and isinstance(value, str):
        lower = {str(choice).lower(): choice for choice in choices}
        near = difflib.get_close_matches(value.lower(), lower, n=1)
        hint = f"; did you mean {lower[near[0]]}?" if near else ""
    return f"must be one of {', '.join(map(_show, choices))}; found {_show(value)}{hint}"


def _no_quantity(choices: list[Any], value: Any) -> str:
    number = f"{Decimal(str(value)):f}" if isinstance(value, float) and math.isfinite(value) else ""
    remedy = f"; put quotes around {number}" if number else ""
    return f"must be a whole number or text, found {_show(value)}{remedy}"


def _bound(words: str) -> Callable[[Any, Any], str]:
    return lambda bound, value: f"must be {words} {bound}, found {_show(value)}"


def _above(bound: Any, value: Any) -> str:
    percent = f"; it is a share: {_show(value)} % is {value / 100:g}" if bound == 1 and 1 < value <= 100 else ""
    return f"must be at most {bound}, found {_show(value)}{percent}"


_WORDS: Final[dict[str, Callable[[Any, Any], str]]] = {
    "type": _wrong_type,
    "pattern": _wrong_pattern,
    "const": lambda expected, value: f"must be {expected}, found {_show(value)}",
    "enum": _not_a_choice,
    "anyOf": _no_quantity,
    "minimum": _bound("at least"),
    "maximum": _above,
    "exclusiveMinimum": _bound("above"),
    "exclusiveMaximum": _bound("below"),
    "multipleOf": _bound("a multiple of"),
    "minLength": lambda bound, value: "must not be empty",
    "maxLength": lambda bound, value: f"has {len(value)} characters; at most {bound} are allowed",
    "minItems": lambda bound, value: f"has {len(value)} items; at least {bound} is needed",
    "maxItems": lambda bound, value: f"has {len(value)} items; at most {bound} are allowed",
    "maxProperties": lambda bound, value: f"has {len(value)} keys; at most {bound} are allowed",
}
