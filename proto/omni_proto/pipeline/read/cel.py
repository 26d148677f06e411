"""Evaluates the CRD's CEL expressions outside the API server, with a CEL library.

Used by commands on a user's machine; the stage server and the client do not need the library. Kubernetes adds functions
to CEL (https://kubernetes.io/docs/reference/using-api/cel/); this module defines those that the CRD's rules use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import cel

from omni_proto.errors import OmniProtoError


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
