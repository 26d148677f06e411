"""Turns the fields of a chat completion request into arguments of the gRPC client.

Pure functions: the caller reads the media.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omni_gateway.errors import InvalidRequestError
from omni_gateway.openai.chat_messages import (
    AssistantMessage,
    Media,
    Message,
    TextPart,
    ToolMessage,
    said_by,
)
from omni_gateway.openai.chat_request import ChatRequest
from omni_proto.client import ChatMessage, MediaPart, Part, ToolCall

_ENTRY_SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p", "ignore_eos"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "min_tokens"),
)


def list_media(messages: Sequence[Message]) -> list[tuple[str, Media]]:
    """Returns the media of the messages in order, each with the path of its field."""
    return [
        (f"messages[{index}].content[{place}]", part)
        for index, message in enumerate(messages)
        if not isinstance(message.content, str | None)
        for place, part in enumerate(message.content)
        if isinstance(part, Media)
    ]


def build_chat(messages: Sequence[Message], media: Sequence[MediaPart]) -> list[ChatMessage]:
    """Returns the conversation. media: the media that were read, in the order of list_media."""
    rest = iter(media)
    chat = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        content = said_by(message) if isinstance(message, AssistantMessage) else message.content
        parts: list[Part] = []
        for part in [content] if isinstance(content, str) else content or []:
            parts.append(part if isinstance(part, str) else part.text if isinstance(part, TextPart) else next(rest))
        calls = (isinstance(message, AssistantMessage) and message.tool_calls) or ()
        chat.append(
            ChatMessage(
                role,
                tuple(parts),
                tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in calls),
                message.tool_call_id if isinstance(message, ToolMessage) else "",
                message.name or "",
            )
        )
    return chat


def count_chars(messages: Sequence[Message]) -> int:
    """Returns the number of characters of text in the messages."""
    total = 0
    for message in messages:
        total += len(message.name or "")
        content = said_by(message) if isinstance(message, AssistantMessage) else message.content
        if isinstance(content, str):
            total += len(content)
        else:
            total += sum(len(part.text) for part in content or () if isinstance(part, TextPart))
    return total


def entry_sampling(request: ChatRequest) -> dict[str, Any]:
    """Returns the sampling parameters of the stage that writes the text. Raises InvalidRequestError."""
    limit, older = request.max_completion_tokens, request.max_tokens
    if limit is not None and older is not None and limit != older:
        raise InvalidRequestError("max_tokens is the older name of max_completion_tokens; send one", param="max_tokens")
    values: Mapping[str, Any] = {
        **{name: getattr(request, name) for name in _ENTRY_SAMPLING},
        "max_tokens": older if limit is None else limit,
        "stop": request.stop or None,
        "stop_token_ids": request.stop_token_ids or None,
    }
    return {name: value for name, value in values.items() if value is not None}
