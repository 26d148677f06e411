"""Turns the fields of a chat completion request into arguments of the gRPC client. Pure: the caller reads the media."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from omni_gateway.client_paths import ClientPaths
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.errors import InvalidRequestError, UnsupportedError
from omni_gateway.openai.body import Target, fields_with_target, read_fields
from omni_gateway.openai.chat_messages import (
    AssistantMessage,
    AudioPart,
    AudioUrlPart,
    FunctionCall,
    Media,
    Message,
    TextPart,
    ToolMessage,
    UserMessage,
    parts_of,
    url_of,
)
from omni_gateway.openai.chat_request import ChatRequest, JsonObjectFormat, NamedTool, StructuredOutputs, TextFormat
from omni_proto.client import (
    ArgumentError,
    CallTool,
    ChatMessage,
    GenerateArguments,
    MediaPart,
    Part,
    StructuredOutput,
    Tool,
    ToolCall,
)

_MIN_TOP_P: Final = 1e-6
"""OpenAI's API allows a top_p of 0, and vLLM does not. This one, too, leaves only the most likely token."""
_OWN: Final = frozenset((*fields_with_target(ChatRequest), "seed", "modalities"))
_SEED_BITS: Final = (1 << 63) - 1


def list_media(messages: Sequence[Message]) -> list[tuple[str, Media]]:
    """Returns the media of the messages in order, each with the path of its part."""
    return [
        (f"messages[{index}]{part.path}", part.content)
        for index, message in enumerate(messages)
        for part in parts_of(message)
        if not isinstance(part.content, str)
    ]


def recall_heard(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the words in place of the audio that was heard already, as the answer to it says.

    A stage that writes down what it hears reads only the last message, and the answering stage reads only text.
    """
    recalled = list(messages)
    for index, (message, answer) in enumerate(pairwise(messages)):
        if not (isinstance(message, UserMessage) and isinstance(answer, AssistantMessage)):
            continue
        heard = answer.input_transcript
        if isinstance(message.content, list) and isinstance(heard, str) and heard.strip():
            words = TextPart(type="text", text=heard.strip())
            content = [words if isinstance(part, AudioPart | AudioUrlPart) else part for part in message.content]
            recalled[index] = message.model_copy(update={"content": content})
    return recalled


def chat_paths(body: ChatRequest) -> ClientPaths:
    """Returns the client's names of what build_chat, answer_sampling and add_form make."""
    form = {"json_schema": "response_format.json_schema.schema", "json_object": "response_format"}
    if body.structured_outputs is not None:
        names = {name: info.alias or name for name, info in type(body.structured_outputs).model_fields.items()}
        form = {name: f"structured_outputs.{alias}" for name, alias in names.items()}
    return ClientPaths(
        parts=[
            [f"messages[{index}]{part.path}{_bytes_of(part.content)}" for part in parts_of(one)]
            for index, one in enumerate(body.messages)
        ],
        form=form,
        max_tokens="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        has_messages=True,
        own=_OWN,
    )


def _bytes_of(part: str | Media) -> str:
    """Returns the path of a medium's bytes below its part; empty for text."""
    if isinstance(part, str):
        return ""
    return ".input_audio.data" if isinstance(part, AudioPart) else url_of(part)[0]


def build_chat(messages: Sequence[Message], media: Sequence[MediaPart]) -> list[ChatMessage]:
    """Returns the conversation. media: the media that were read, in the order of list_media."""
    rest = iter(media)
    chat = []
    for message in messages:
        parts: list[Part] = [
            part.content if isinstance(part.content, str) else next(rest) for part in parts_of(message)
        ]
        calls = (isinstance(message, AssistantMessage) and message.tool_calls) or ()
        chat.append(
            ChatMessage(
                "system" if message.role == "developer" else message.role,
                tuple(parts),
                tuple(ToolCall(call.id, call.function.name, _arguments(call.function)) for call in calls),
                message.tool_call_id if isinstance(message, ToolMessage) else "",
                message.name or "",
            )
        )
    return chat


def _arguments(function: FunctionCall) -> str:
    return function.arguments if isinstance(function.arguments, str) else json.dumps(function.arguments)


def count_chars(messages: Sequence[Message]) -> int:
    """Returns the number of characters of text in the messages."""
    return sum(
        len(message.name or "") + sum(len(part.content) for part in parts_of(message) if isinstance(part.content, str))
        for message in messages
    )


def answer_sampling(request: ChatRequest) -> dict[str, Any]:
    """Returns the sampling parameters of the stage that writes the text. Raises InvalidRequestError."""
    limit, older = request.max_completion_tokens, request.max_tokens
    if limit is not None and older is not None and limit != older:
        raise InvalidRequestError("max_tokens is the older name of max_completion_tokens; send one", param="max_tokens")
    values = read_fields(request, Target.SAMPLING)
    if limit is not None:
        values["max_tokens"] = limit
    if request.top_p is not None:
        values["top_p"] = max(request.top_p, _MIN_TOP_P)
    return {name: value for name, value in values.items() if value not in ("", [])}


def fold_seed(seed: int | None) -> int | None:
    """Returns the seed for the stages, from 0 to 2**63 - 1; None if they choose one, as -1 asks for.

    Other numbers are folded into this range: OpenAI's seeds may be negative, and JavaScript rounds large ones up.
    """
    return None if seed is None or seed == -1 else seed & _SEED_BITS


def add_tools(arguments: GenerateArguments, body: ChatRequest, facts: EntryFacts) -> None:
    """Put tools and tool_choice into the arguments. Raises InvalidRequestError."""
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice needs tools.", param="tool_choice")
        return
    if not facts.calls_tools:
        why = _passes_nothing_on(facts, "tools") or "its entry stage names no engineArgs.toolCallParser"
        raise UnsupportedError(f"The model {body.model[:128]!r} calls no tools: {why}.", param="tools")
    functions = [tool.function for tool in body.tools]
    arguments["tools"] = [
        Tool(one.name, one.description or "", one.parameters or "", strict=bool(one.strict)) for one in functions
    ]
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in [one.name for one in functions]:
            raise InvalidRequestError(f"tool_choice names {name[:64]!r}, which is not in tools.", param="tool_choice")
        arguments["tool_choice"] = CallTool(name)
    elif body.tool_choice is not None:
        arguments["tool_choice"] = body.tool_choice


def _passes_nothing_on(facts: EntryFacts, param: str) -> str:
    """Returns why a field does not reach the stage that answers; empty if that is the entry stage."""
    if facts.answering in ("", facts.stage):
        return ""
    return f"its entry stage {facts.stage!r} does not pass {param} on to {facts.answering!r}, which answers"


def add_form(arguments: GenerateArguments, body: ChatRequest, facts: EntryFacts) -> None:
    """Put the form of the text into the arguments. Raises InvalidRequestError."""
    wanted = body.response_format
    if isinstance(wanted, TextFormat):
        wanted = None
    if wanted is None and body.structured_outputs is None:
        return
    param = "response_format" if body.structured_outputs is None else "structured_outputs"
    if not facts.structures_text:
        why = _passes_nothing_on(facts, param) or f"{param} is not supported"
        raise UnsupportedError(f"The model {body.model[:128]!r} returns any text: {why}.", param=param)
    if body.structured_outputs is not None:
        if wanted is not None:
            raise InvalidRequestError("response_format and structured_outputs exclude each other.", param=param)
        arguments["structured_output"] = _read_form(body.structured_outputs)
    elif isinstance(wanted, JsonObjectFormat):
        arguments["structured_output"] = StructuredOutput(json_object=True)
    elif wanted is None or wanted.json_schema.json_schema is None:
        raise InvalidRequestError("response_format needs a schema.", param="response_format.json_schema.schema")
    else:
        arguments["structured_output"] = StructuredOutput(json_schema=wanted.json_schema.json_schema)


def _read_form(wanted: StructuredOutputs) -> StructuredOutput:
    given = {
        name: value for name in StructuredOutputs.model_fields if (value := getattr(wanted, name)) not in (None, False)
    }
    try:
        return StructuredOutput(**given)
    except ArgumentError as error:
        raise InvalidRequestError(
            "structured_outputs needs exactly one of json, json_object, regex, choice and grammar.",
            param="structured_outputs",
        ) from error
