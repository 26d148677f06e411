"""Problems of a pipeline: field, message and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field as dataclasses_field
from typing import TypeAlias

from omni_proto.errors import OmniProtoError

FieldPath: TypeAlias = tuple[str | int, ...]
"""Keys and indices from the document down to a field."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong field."""

    field: str
    """Path, e.g. spec.stages[1].inputs[0].from"""
    message: str
    """What is wrong and what to do."""
    path: FieldPath = dataclasses_field(default=(), compare=False)
    """Keys and indices down to the field, where they are known."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class PipelineError(OmniProtoError, ValueError):
    """A pipeline file is unreadable or wrong. str() has one line per problem."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


def format_path(path: FieldPath) -> str:
    """Returns a path in the API server's notation, e.g. spec.stages[0].podLabels[example.com/team].

    The whole document is "file".
    """
    text = ""
    for part in path:
        if isinstance(part, int) or any(mark in part for mark in "/. "):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text or "file"
