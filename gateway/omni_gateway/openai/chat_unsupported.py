"""Finds values of OpenAI's fields that this gateway does not honour: hints, which it ignores, and others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from omni_gateway.openai.chat_messages import AssistantMessage, ImagePart, said_by
from omni_gateway.openai.chat_request import ChatRequest


class Without(Enum):
    """What happens to a value that is not honoured."""

    HINT = "always ignored: it says how to answer, not what"
    MEANING = "refused, or ignored if the setting unsupportedFields is Ignore: the answer is another one without it"
    NEED = "always refused: without it the conversation is another one, or the client relies on it for safety"


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is not honoured."""

    path: str
    why: str
    """The reason and the remedy, for people."""
    without: Without


_FIELDS: Final[Mapping[str, tuple[Without, tuple[object, ...]]]] = {
    "service_tier": (Without.HINT, ("auto", "default")),
    "reasoning_effort": (Without.HINT, ()),
    "verbosity": (Without.HINT, ("medium",)),
    "prediction": (Without.HINT, ()),
    "store": (Without.MEANING, (False,)),
    "n": (Without.MEANING, (1,)),
    "logprobs": (Without.MEANING, (False,)),
    "top_logprobs": (Without.MEANING, (0,)),
    "logit_bias": (Without.MEANING, ({},)),
    "functions": (Without.MEANING, ([],)),
    "function_call": (Without.MEANING, ("none", "auto")),
    "web_search_options": (Without.MEANING, ()),
    "include_reasoning": (Without.MEANING, (True,)),
    "moderation": (Without.NEED, ()),
}
"""By field, what happens to its values, except to those that have no effect anyway."""


def find_unread(request: ChatRequest) -> Iterator[Unread]:
    """Yields the values that are not honoured."""
    for name, (without, neutral) in _FIELDS.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            yield Unread(name, not_supported(name, *neutral), without)
    for index, message in enumerate(request.messages):
        path = f"messages[{index}]"
        if isinstance(message, AssistantMessage):
            yield from _read_answer(path, message)
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            image = part.image_url if isinstance(part, ImagePart) else ""
            if not isinstance(image, str) and image.detail not in (None, "auto"):
                where = f"{path}.content[{place}].image_url.detail"
                yield Unread(where, "the model decides by the image's size", Without.HINT)
    if request.stream_options is not None:
        if not request.stream:
            yield Unread("stream_options", "stream_options needs stream: true", Without.HINT)
        if request.stream_options.continuous_usage_stats:
            path = "stream_options.continuous_usage_stats"
            yield Unread(path, f"{path} is not supported; the usage comes at the end", Without.MEANING)


def _read_answer(path: str, message: AssistantMessage) -> Iterator[Unread]:
    if message.function_call is not None:
        why = "function_call is not supported here; send tool_calls"
        yield Unread(f"{path}.function_call", why, Without.NEED)
    elif not said_by(message) and message.audio is not None:
        why = "audio.id is not kept here; send the transcript as content"
        yield Unread(f"{path}.audio", why, Without.NEED)
    elif not said_by(message) and not message.tool_calls:
        yield Unread(f"{path}.content", "an assistant message needs content", Without.NEED)


def not_supported(name: str, *neutral: Any) -> str:
    """Returns the reason and the remedy for a field of which only the neutral values are allowed."""
    taken = " or ".join(repr(one) for one in neutral)
    return f"{name} is not supported here; leave it out" + (f" or send {taken}" if taken else "")
