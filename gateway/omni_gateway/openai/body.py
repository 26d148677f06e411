"""What all request models share: their base, unions that report the error of the right branch, and marks of fields.

A field is declared once, with its name, its type, and a mark that says where its value goes or why it is not honoured:

    temperature: Annotated[float | None, Field(ge=0, le=2), Target.SAMPLING] = None
    store: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None

A field without a mark is read by name, or has no effect, as its docstring says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

_KINDS: Final = {str: "<text>", list: "<list>", dict: "<object>"}
"""Tags of a union's branches. pydantic puts the tag into the path of a problem; no field has such a name."""


class Body(BaseModel):
    """Base of request bodies. Unknown fields are errors, unless their value is null."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        json_schema_extra={"additionalProperties": {"type": "null"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Many programs send null for each field that their user did not set, so null means that a field is absent."""
        if isinstance(value, dict) and None in value.values():
            return {name: one for name, one in value.items() if one is not None}
        return value


class CacheHints(Body):
    """Base of objects on which clients of other APIs mark what to cache. The marks have no effect, because the engine
    finds equal prefixes by itself."""

    cache_control: Any = None
    """Anthropic's mark; without effect."""
    prompt_cache_breakpoint: Any = None
    """OpenAI's mark; without effect."""


def _kind_of(value: Any) -> str | None:
    for kind, tag in _KINDS.items():
        if isinstance(value, kind):
            return tag
    return _KINDS[dict] if isinstance(value, BaseModel) else None


def by_kind(wanted: str) -> Discriminator:
    """Returns the discriminator of a union whose branches differ in the kind of the JSON value.

    Only the branch of the value's own kind is validated, so that an error says what is wrong there. wanted: names the
    kinds, for the error of a value of another kind.
    """
    return Discriminator(_kind_of, custom_error_type="union_kind", custom_error_message=f"Input should be {wanted}")


TEXT: Final = Tag(_KINDS[str])
LIST: Final = Tag(_KINDS[list])
OBJECT: Final = Tag(_KINDS[dict])

Text = Annotated[str, TEXT]
"""The branch of a union for a text."""


class Target(Enum):
    """Where the value of a field goes under the field's name, unless it is null."""

    SAMPLING = "sampling parameters of the stage that answers"
    ARGUMENTS = "arguments of the call of the entry stage"


class Without(Enum):
    """What happens to a value that is not honoured."""

    HINT = "always ignored: it says how to answer, not what"
    MEANING = "refused, or ignored if the setting unsupportedFields is Ignore: the answer is another one without it"
    NEED = "always refused: without it the conversation is another one, or the client relies on it for safety"


@dataclass(frozen=True, slots=True)
class UnsupportedValue:
    """A value that is not honoured."""

    path: str
    why: str
    """The reason and the remedy, for people."""
    without: Without


class Unsupported:
    """Marks a field whose values are not honoured, except for the neutral ones, which have no effect anyway."""

    def __init__(self, without: Without, neutral: Sequence[object] = (), *, why: str = "") -> None:
        """why: the reason and the remedy for other values; empty: those of not_supported."""
        self.without = without
        self.neutral = neutral
        self.why = why


@cache
def fields_with_target(model: type[Body]) -> dict[str, Target]:
    """Returns the fields of a model that are marked with Target, in their order."""
    fields = model.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Target)}


@cache
def _unsupported_fields(model: type[Body]) -> dict[str, Unsupported]:
    fields = model.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Unsupported)}


def read_fields(body: Body, target: Target) -> dict[str, Any]:
    """Returns the values that go there, by name, without nulls."""
    values = {name: getattr(body, name) for name, mark in fields_with_target(type(body)).items() if mark is target}
    return {name: value for name, value in values.items() if value is not None}


def find_unsupported(body: Body) -> Iterator[UnsupportedValue]:
    """Yields the values of fields that are marked with Unsupported and are not neutral."""
    for name, mark in _unsupported_fields(type(body)).items():
        value = getattr(body, name)
        if value is not None and value not in mark.neutral:
            yield UnsupportedValue(name, mark.why or not_supported(name, *mark.neutral), mark.without)


class Sampled(Body):
    """Base of requests for text: how its tokens are chosen."""

    top_p: Annotated[float | None, Field(ge=0, le=1), Target.SAMPLING] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2), Target.SAMPLING] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2), Target.SAMPLING] = None
    top_k: Annotated[int | None, Field(ge=-1, le=2**31 - 1), Target.SAMPLING] = None
    """vLLM extension: sample only from this number of most likely tokens."""
    min_p: Annotated[float | None, Field(ge=0, le=1), Target.SAMPLING] = None
    """vLLM extension: minimum probability of a token, relative to the most likely token."""
    repetition_penalty: Annotated[float | None, Field(gt=0, le=10), Target.SAMPLING] = None
    """vLLM extension: values above 1 discourage tokens of the prompt and the output."""
    n: Annotated[int | None, Unsupported(Without.MEANING, neutral=[1])] = None
    """Only 1, like the next ones only vLLM's default."""
    include_stop_str_in_output: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    use_beam_search: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    length_penalty: Annotated[float | None, Unsupported(Without.MEANING, neutral=[1.0])] = None


def not_supported(name: str, *neutral: object) -> str:
    """Returns the reason and the remedy for a field of which only the neutral values are allowed."""
    taken = " or ".join(json.dumps(one) for one in neutral)
    return f"{name} is not supported here; leave it out" + (f" or send {taken}" if taken else "")
