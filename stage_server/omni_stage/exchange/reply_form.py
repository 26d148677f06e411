"""The form of reply that a client may request of the entry stage: a given text, tool calls, or structured output.

This module holds plain data, and TextParse, the interface of a parser of the reply's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class GivenReply:
    """A reply that the client provides, so that the model samples none. Exactly one field is set."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    """Ids of the stage's tokenizer. If the last one is an end-of-text token, it is dropped."""


@dataclass(frozen=True, slots=True)
class ReplyTokens:
    """A given reply, tokenized."""

    token_ids: tuple[int, ...]
    """At least one id, without the end-of-text token."""
    text: str
    """The reply as text, which the client receives."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of its arguments."""
    strict: bool = False
    """Whether the arguments must fit the schema."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call that the assistant made earlier in a conversation."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class ToolMode(Enum):
    """Whether the model calls tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request."""

    tools: tuple[Tool, ...]
    mode: ToolMode = ToolMode.AUTO
    function: str = ""
    """Name of the one function that must be called; if empty, the mode decides."""

    def as_openai(self) -> list[dict[str, Any]]:
        """Returns the tools in OpenAI's form, which chat templates read."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or None,
                    "parameters": dict(tool.parameters),
                    **({"strict": True} if tool.strict else {}),
                },
            }
            for tool in self.tools
        ]


@dataclass(frozen=True, slots=True)
class StructuredText:
    """The form that the text must have. Exactly one field is set."""

    json_schema: str | None = None
    """JSON Schema, as JSON text."""
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    """EBNF."""

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        names = ("json_schema", "regex", "choice", "grammar")
        return next((name for name in names if getattr(self, name) is not None), "json_object")


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The result of parsing a piece of text."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()


class TextParse(Protocol):
    """The parser of one request's text."""

    def feed(
        self, text: str, token_ids: Sequence[int], prompt_token_ids: Sequence[int] | None, *, finished: bool
    ) -> ParsedText:
        """Returns the parse of the next piece of text. Raises OmniStageError.

        `prompt_token_ids` is set for the first piece.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a tool call that the model writes."""

    index: int
    """Number of the call in the answer, from 0."""
    id: str = ""
    """Only in the first piece of a call."""
    name: str = ""
    """Only in the first piece of a call."""
    arguments: str = ""
    """The next part of the arguments' JSON text."""
