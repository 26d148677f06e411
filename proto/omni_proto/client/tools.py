"""Tools that a model may call, and the format that its text must have: plain data, and the conversion to protobuf."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omni_proto.brief import Brief
from omni_proto.errors import ArgumentError
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2

_MODES: Final = {
    "auto": prompt_pb2.TOOL_MODE_AUTO,
    "none": prompt_pb2.TOOL_MODE_NONE,
    "required": prompt_pb2.TOOL_MODE_REQUIRED,
}


@dataclass(frozen=True, slots=True, repr=False)
class Tool(Brief):
    """A function that the model may call. You run it and return its answer with tool_result()."""

    name: str
    description: str = ""
    """What the function does; the model reads this text."""
    parameters: Mapping[str, Any] | str = ""
    """JSON Schema of its arguments, as a mapping or as JSON text; empty if it takes no arguments."""
    strict: bool = False
    """Whether the arguments must match the schema; otherwise the model may generate any JSON."""


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall(Brief):
    """A call that the model made."""

    id: str
    name: str
    """Name of the function."""
    arguments: str
    """A JSON object, as text; incomplete if the answer was cut off."""


@dataclass(frozen=True, slots=True, repr=False)
class CallTool(Brief):
    """A tool_choice: the one function that the model must call."""

    name: str


ToolChoice = str | CallTool
""""auto" (the default), "none", "required", or the one function to call."""


@dataclass(frozen=True, slots=True, repr=False)
class StructuredOutput(Brief):
    """The format that the text must have. Exactly one field must be set. Raises ArgumentError otherwise."""

    json_schema: Mapping[str, Any] | str | None = None
    """JSON that matches this schema, given as a mapping or as JSON text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """Text that matches this regular expression as a whole."""
    choice: Sequence[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """Text of this context-free grammar, in EBNF."""

    def __post_init__(self) -> None:
        given = [name for name in self.__slots__ if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            names, got = ", ".join(self.__slots__), " and ".join(given) or "none"
            raise ArgumentError(f"structured_output takes exactly one of {names}, got {got}", field="structured_output")

    def to_proto(self) -> sampling_pb2.StructuredOutput:
        """Returns the protobuf message. Raises ArgumentError if a value has the wrong type."""
        if self.choice is not None:
            if isinstance(self.choice, str):
                raise ArgumentError("structured_output.choice must be a list of str", field="structured_output.choice")
            return sampling_pb2.StructuredOutput(choice=sampling_pb2.Choices(texts=self.choice))
        if self.json_schema is not None:
            schema = as_json(self.json_schema, "structured_output.json_schema")
            return sampling_pb2.StructuredOutput(json_schema=schema)
        if self.regex is not None:
            return sampling_pb2.StructuredOutput(regex=self.regex)
        if self.grammar is not None:
            return sampling_pb2.StructuredOutput(grammar=self.grammar)
        return sampling_pb2.StructuredOutput(json_object=True)


def add_tools(chat: prompt_pb2.ChatPrompt, tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Add the tools and the choice to the message. Raises ArgumentError."""
    for index, tool in enumerate(tools):
        if not isinstance(tool, Tool):
            raise ArgumentError(f"tools[{index}] must be a Tool, got {type(tool).__name__}", field=f"tools[{index}]")
        chat.tools.add(
            name=tool.name,
            description=tool.description,
            strict=tool.strict,
            parameters=as_json(tool.parameters, f"tools[{index}].parameters") if tool.parameters else "",
        )
    if isinstance(choice, CallTool):
        chat.tool_choice.function = choice.name
    elif choice is not None:
        if choice not in _MODES:
            raise ArgumentError(
                f"tool_choice must be {', '.join(_MODES)} or CallTool(NAME), got {str(choice)[:32]!r}",
                field="tool_choice",
            )
        chat.tool_choice.mode = _MODES[choice]


def given_reply(reply: str | Sequence[int]) -> prompt_pb2.GivenReply:
    """Returns the protobuf message of a reply that is given as text or as token ids. Raises ArgumentError."""
    if isinstance(reply, str):
        return prompt_pb2.GivenReply(text=reply)
    try:
        return prompt_pb2.GivenReply(token_ids=prompt_pb2.TokenPrompt(ids=reply))
    except (TypeError, ValueError) as error:
        raise ArgumentError("reply must be text, or token ids from 0 to 4294967295", field="reply") from error


def as_json(value: Mapping[str, Any] | str, field: str) -> str:
    """Returns the value as JSON text; text is returned unchanged. Raises ArgumentError."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{field} must be a value that JSON has: {error}", field=field) from error
