"""API keys, and what they may do: models, priorities, cache salt, forms of text, and limits.

A model that a key may not use does not exist for it, under whatever name it asks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import InvalidRequestError, UnsupportedError
from omni_gateway.openai.chat_request import ChatRequest
from omni_proto.client import GenerateArguments

ANY: Final = "*"
_SALT_OF: Final = b"omnipipeline cache salt\0"
MAX_PATTERNS: Final = 64

ModelPattern = Annotated[str, StringConstraints(min_length=1, max_length=192, pattern=r"^[A-Za-z0-9._:/*-]+$")]
Priority = Annotated[int, Field(ge=-1000, le=1000, strict=True)]


class FileModel(BaseModel):
    """A part of the key file: closed, with camelCase names."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class PriorityBounds(FileModel):
    """The priorities that requests of a key may have. Lower numbers are served first."""

    min: Priority = -1000
    max: Priority = 1000

    @model_validator(mode="after")
    def _check_order(self) -> PriorityBounds:
        if self.min > self.max:
            raise ValueError("min is larger than max")
        return self


class KeyRights(FileModel):
    """What requests of one key may use. The defaults are also those of a gateway without keys."""

    models: Annotated[tuple[ModelPattern, ...], Field(min_length=1, max_length=MAX_PATTERNS)] | None = None
    """Patterns of models; see `matches`. None: every model."""
    priority: PriorityBounds = PriorityBounds()
    """Bounds of `priority`. A request without one gets 0, or the bound that is nearest to 0."""
    structured_output: Literal["None", "Json", "All"] = "All"
    """None: any text. Json: also JSON, JSON Schemas and tools. All: also regular expressions, grammars and choices."""

    @model_validator(mode="after")
    def _check_patterns(self) -> KeyRights:
        for one in self.models or ():
            if "*" in one and one.count("/") > 1:
                raise ValueError(f"models: {one} matches nothing, because NAMESPACE/NAME has one slash")
        return self

    def filter(self, pipelines: Iterable[ServedPipeline]) -> list[ServedPipeline]:
        """Returns the pipelines that the key may use."""
        return [one for one in pipelines if self.models is None or any(matches(glob, one) for glob in self.models)]

    def check(self, body: ChatRequest) -> None:
        """Raises InvalidRequestError that names the first field with a value that the key may not use."""
        if body.priority is not None and not self.priority.min <= body.priority <= self.priority.max:
            raise InvalidRequestError(
                f"priority is {body.priority}; this API key may use {self.priority.min} to {self.priority.max}.",
                param="priority",
            )
        if (field := self._find_form(body)) is not None:
            use = "JSON and tools only" if self.structured_output == "Json" else "no structured output and no tools"
            raise UnsupportedError(f"{field} is not allowed: this API key may use {use}.", param=field)

    def _find_form(self, body: ChatRequest) -> str | None:
        """Returns the first field that asks for a form of text which the key may not use, None if there is none."""
        if self.structured_output == "All":
            return None
        form = body.structured_outputs
        if form is not None:
            given = [name for name in form.model_fields_set if getattr(form, name)]
            if self.structured_output == "None" or not set(given) <= _JSON_FORMS:
                return "structured_outputs"
        allowed = ("text", "json_object", "json_schema") if self.structured_output == "Json" else ("text",)
        if body.response_format is not None and body.response_format.type not in allowed:
            return "response_format"
        return "tools" if body.tools and self.structured_output == "None" else None

    def apply(self, arguments: GenerateArguments) -> None:
        """Set the priority and the cache salt of a call as the key allows."""
        arguments["priority"] = self.priority_of(arguments.get("priority"))
        arguments["cache_salt"] = self.salt_of(arguments.get("cache_salt"))

    def priority_of(self, given: int | None) -> int:
        """Returns the priority to send for a request's priority."""
        return min(max(given or 0, self.priority.min), self.priority.max)

    def salt_of(self, given: str | None) -> str:
        """Returns the cache salt to send for a request's salt; empty for none."""
        return given or ""


class KeyLimits(FileModel):
    """Limits of one key, for all replicas together. None means no limit."""

    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Requests per minute; the same number may arrive in one burst."""
    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    """Requests in progress at the same time."""
    audio_seconds_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Seconds of returned audio per minute, counted when a request ends."""


class ApiKey(KeyRights):
    """One key."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._-]+$")]
    """Shown in logs."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the key, lower-case hex."""
    limits: KeyLimits = KeyLimits()
    cache_salt: Literal["Key", "Caller"] = "Key"
    """Key: requests share cached prefixes only with requests of the same key. Caller: as the request's salt says, so
    also with requests of other keys of this kind."""

    def salt_of(self, given: str | None) -> str:
        """Returns the cache salt to send for a request's salt; empty for none.

        Nobody but the gateway can compute a key's salt, because it depends on the hash of the key. So no other caller
        can send the same one.
        """
        if self.cache_salt == "Caller":
            return super().salt_of(given)
        message = _SALT_OF + (given or "").encode("utf-8", "surrogatepass")
        return hmac.new(bytes.fromhex(self.sha256), message, hashlib.sha256).hexdigest()


_JSON_FORMS: Final = frozenset({"json_schema", "json_object"})


def matches(pattern: str, pipeline: ServedPipeline) -> bool:
    """Returns whether a pattern of a key selects a pipeline.

    A pattern without `*` selects the pipeline that requests reach by this name: NAMESPACE/NAME, its name, or an alias.
    `*` stands for any text without a slash. With a slash, such a pattern is compared with NAMESPACE/NAME, otherwise
    with names and aliases that have no slash. `*` alone selects every pipeline. Case matters.
    """
    if pattern == ANY:
        return True
    if "*" not in pattern:
        return pattern in pipeline.addresses
    if "/" in pattern:
        return _matches(pattern, pipeline.qualified)
    return any(_matches(pattern, one) for one in pipeline.addresses)


def _matches(pattern: str, text: str) -> bool:
    parts, names = pattern.split("/"), text.split("/")
    return len(parts) == len(names) and all(map(_matches_part, parts, names))


def _matches_part(pattern: str, text: str) -> bool:
    """Returns whether a text fits a pattern with `*`, in linear time: the first place of each piece is good enough."""
    first, *middle = pattern.split("*")
    if not middle:
        return first == text
    last = middle.pop()
    if not (text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True
