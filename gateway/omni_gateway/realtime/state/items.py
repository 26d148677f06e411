"""The items of a conversation, and the conversation. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from omni_gateway.errors import InvalidRequestError
from omni_gateway.media.read import decode_base64
from omni_gateway.realtime.state.config import AudioFormat
from omni_gateway.realtime.state.heard import Spoken

MAX_ITEMS: Final = 1024
"""Maximum number of items of a conversation. A prompt has at most twice as many messages."""
MAX_PARTS: Final = 64
FIRST: Final = "root"
"""Stands for the place before the first item."""
_ROLES: Final = {
    "user": {"input_text": "input_text", "text": "input_text", "input_audio": "input_audio"},
    "system": {"input_text": "input_text", "text": "input_text"},
    "assistant": {
        "output_text": "output_text",
        "text": "output_text",
        "output_audio": "output_audio",
        "audio": "output_audio",
    },
}
"""The types of content by role, with the names of the beta version of the API."""
_ROLES["user"]["input_image"] = "input_image"
_ROLES["developer"] = _ROLES["system"]
_OVERHEAD: Final = 512
"""Memory of a part or an item besides its texts, in bytes."""
_TOKEN_CHARS, _TOKEN_MS, _IMAGE_TOKENS = 4, 60, 512
"""What takes about a token: characters of text, milliseconds of audio; and the tokens of an image. They only weigh the
turns of a conversation against each other."""


@dataclass(slots=True)
class Content:
    """One part of a message."""

    type: str
    """One of input_text, input_audio, input_image, output_text and output_audio."""
    text: str = ""
    """The text, the transcript, or the image's URL."""
    audio: bytes = b""
    """The user's audio, in `format`. The audio of answers is not kept."""
    format: AudioFormat = field(default_factory=AudioFormat)
    detail: str | None = None

    @property
    def tokens(self) -> float:
        """Rough number of tokens in a prompt."""
        if self.type == "input_image":
            return _IMAGE_TOKENS
        if self.audio:
            return len(self.audio) / self.format.bytes_per_ms / _TOKEN_MS
        return len(self.text) / _TOKEN_CHARS

    def view(self, *, with_audio: bool = False) -> dict[str, Any]:
        """Returns the part as clients see it."""
        if self.type == "input_image":
            return {"type": self.type, "image_url": self.text, "detail": self.detail or "auto"}
        if not self.type.endswith("_audio"):
            return {"type": self.type, "text": self.text}
        shown: dict[str, Any] = {"type": self.type, "transcript": self.text or None}
        if self.type == "output_audio":
            shown["transcript"] = self.text
        if with_audio and self.audio:
            shown["audio"] = base64.b64encode(self.audio).decode()
        return shown


@dataclass(slots=True)
class Item:
    """A message, a call of a function, or its result."""

    id: str
    type: str
    """message, function_call or function_call_output."""
    role: str = ""
    content: list[Content] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str = ""
    status: str = "completed"
    spoken: Spoken | None = None
    """What an answer with audio consists of, so that it can be cut."""
    heard_ms: float | None = None
    """How much of that audio the user has heard, if the client has said so."""
    is_left_out: bool = False
    """Whether prompts do not have it any more, because the conversation was too long."""

    def view(self, *, with_audio: bool = False) -> dict[str, Any]:
        """Returns the item as clients see it. with_audio: with the user's audio."""
        shown: dict[str, Any] = {
            "id": self.id,
            "object": "realtime.item",
            "type": self.type,
            "status": self.status,
        }
        if self.type == "message":
            return {**shown, "role": self.role, "content": [one.view(with_audio=with_audio) for one in self.content]}
        shown["call_id"] = self.call_id
        if self.type == "function_call":
            return {**shown, "name": self.name, "arguments": self.arguments}
        return {**shown, "output": self.output}

    @property
    def held_bytes(self) -> int:
        """Memory of the item."""
        texts = len(self.arguments) + len(self.output) + sum(len(one.text) for one in self.content)
        return _OVERHEAD * (1 + len(self.content)) + 4 * texts + sum(len(one.audio) for one in self.content)

    @property
    def tokens(self) -> float:
        """Rough number of tokens in a prompt."""
        texts = len(self.name) + len(self.arguments) + len(self.output)
        return texts / _TOKEN_CHARS + sum(one.tokens for one in self.content)

    def truncate(self, end_ms: float, pace: float | None) -> int:
        """Cut an answer to what was heard up to this time. pace: see Spoken.cut. Returns the time that holds: no audio
        came after its end, and what was cut does not come back. Raises InvalidRequestError."""
        if self.spoken is None:
            raise InvalidRequestError(
                "Only model output audio messages can be truncated.", param="item_id", code="unsupported_content_type"
            )
        # Clients count the time since the first audio, which may be longer than the audio.
        self.heard_ms = min(end_ms, self.spoken.audio_ms or end_ms, end_ms if self.heard_ms is None else self.heard_ms)
        self.cut(pace)
        return int(self.heard_ms)

    def cut(self, pace: float | None) -> None:
        """Cut the text of an answer to what was heard, if the client has said how much that is."""
        if self.spoken is not None and self.heard_ms is not None:
            self.content[0].text = self.spoken.cut(self.heard_ms, pace)


def read_item(given: Mapping[str, Any], id: str, format: AudioFormat, max_bytes: int, param: str) -> Item:
    """Returns the item that a client sent. id: for an item without one. format: of its audio. param: its field.

    Raises InvalidRequestError and TooLargeError.
    """
    kind = given.get("type") or "message"
    item = Item(_text(given, "id", param) or id, str(kind)[:64])
    if len(item.id) > 512:
        raise InvalidRequestError("id has more than 512 characters.", param=f"{param}.id")
    if kind == "function_call_output":
        item.call_id, item.output = _needed(given, "call_id", param), _text(given, "output", param)
    elif kind == "function_call":
        item.call_id = _text(given, "call_id", param) or f"call_{item.id}"
        item.name, item.arguments = _needed(given, "name", param), _text(given, "arguments", param)
    elif kind == "message":
        item.role = _needed(given, "role", param)[:64]
        item.content = list(_read_content(item.role, given.get("content"), format, max_bytes, param))
        item.role = "system" if item.role == "developer" else item.role
    else:
        raise InvalidRequestError(
            f"{param}.type is {item.type!r}; use message, function_call or function_call_output.", param=f"{param}.type"
        )
    return item


def _read_content(role: str, given: Any, format: AudioFormat, max_bytes: int, param: str) -> Iterator[Content]:
    if role not in _ROLES:
        raise InvalidRequestError(f"{param}.role is {role!r}; use user, system or assistant.", param=f"{param}.role")
    if given is None:
        raise _missing(f"{param}.content")
    parts = [{"type": "text", "text": given}] if isinstance(given, str) else given
    if not isinstance(parts, list) or len(parts) > MAX_PARTS:
        raise InvalidRequestError(
            f"{param}.content is a list of at most {MAX_PARTS} parts.", param=f"{param}.content", code="invalid_type"
        )
    for place, part in enumerate(parts):
        path = f"{param}.content[{place}]"
        kind = part.get("type") if isinstance(part, dict) else None
        known = _ROLES[role].get(kind) if isinstance(kind, str) else None
        if not isinstance(part, dict) or known is None:
            names = ", ".join(dict.fromkeys(_ROLES[role].values()))
            raise InvalidRequestError(f"{path}.type is {repr(kind)[:64]}; a {role} message has {names}.", param=path)
        if known == "input_image":
            yield Content(known, _needed(part, "image_url", path), detail=_text(part, "detail", path) or None)
        elif known == "input_audio":
            data = decode_base64(_needed(part, "audio", path), param=f"{path}.audio", max_bytes=max_bytes)
            # Half a sample at the end would make the audio unreadable.
            data = data[: len(data) - len(data) % (2 if format.type == "audio/pcm" else 1)]
            yield Content(known, _text(part, "transcript", path), data, format)
        elif known == "output_audio":
            yield Content(known, _text(part, "transcript", path) or _text(part, "text", path))
        elif part.get("text") is None:
            raise _missing(f"{path}.text")
        else:
            yield Content(known, _text(part, "text", path))


def _text(given: Mapping[str, Any], name: str, param: str) -> str:
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    raise InvalidRequestError(f"{param}.{name} is a text.", param=f"{param}.{name}", code="invalid_type")


def _needed(given: Mapping[str, Any], name: str, param: str) -> str:
    found = _text(given, name, param)
    if not found:
        raise _missing(f"{param}.{name}")
    return found


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"Missing required parameter: {path!r}.", param=path, code="missing_required_parameter")


class Conversation:
    """Items in order."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    @property
    def held_bytes(self) -> int:
        """Memory of all items."""
        return sum(one.held_bytes for one in self.items)

    @property
    def kept(self) -> list[Item]:
        """The items that prompts have."""
        return [one for one in self.items if not one.is_left_out]

    def find(self, id: str, code: str, param: str = "item_id") -> Item:
        """Returns an item. code, param: of the InvalidRequestError that is raised if there is none."""
        for item in self.items:
            if item.id == id:
                return item
        raise InvalidRequestError(f"No item has the id {id[:128]!r}.", param=param, code=code)

    def place_behind(self, previous: str | None) -> int:
        """Returns the index of an item behind another one. Raises InvalidRequestError."""
        if previous is None:
            return len(self.items)
        if previous == FIRST:
            return 0
        for place, item in enumerate(self.items):
            if item.id == previous:
                return place + 1
        raise InvalidRequestError(
            f"previous_item_id names {previous[:128]!r}, which no item has.",
            param="previous_item_id",
            code="item_create_invalid_previous_item_id",
        )

    def insert(self, item: Item, place: int | None = None) -> str | None:
        """Add an item. Returns the id of the item before it. Raises InvalidRequestError."""
        if len(self.items) >= MAX_ITEMS:
            raise InvalidRequestError(
                f"The conversation has {MAX_ITEMS} items, the limit; delete some with conversation.item.delete.",
                code="conversation_too_long",
            )
        if any(one.id == item.id for one in self.items):
            raise InvalidRequestError(
                f"An item has the id {item.id[:128]!r} already.", param="item.id", code="item_create_duplicate_item_id"
            )
        if item.type == "function_call_output" and item.call_id not in [one.call_id for one in self.items]:
            raise InvalidRequestError(
                f"Tool call ID {item.call_id[:128]!r} not found in conversation.",
                param="item.call_id",
                code="invalid_tool_call_id",
            )
        place = len(self.items) if place is None else place
        self.items.insert(place, item)
        return self.items[place - 1].id if place else None

    def forget_audio(self, max_bytes: int) -> None:
        """Forget the user's audio from the oldest item on, until all items fit. Items keep their transcripts."""
        held = self.held_bytes
        for item in self.items[:-1]:
            if held <= max_bytes:
                return
            for part in item.content:
                held -= len(part.audio)
                part.audio = b""

    def leave_out(self, retained: float | None) -> bool:
        """Leave the oldest turns out of further prompts, at least one of them, until about this share of the tokens is
        left; None: none of them. The user's last message stays, and so do messages of the system. Returns False if none
        was left out."""
        rest = [one for one in self.items if not one.is_left_out and one.role != "system"]
        turns = [place for place, one in enumerate(rest) if one.role == "user"][1:]
        if retained is None or not turns:
            return False
        after = [*accumulate(one.tokens for one in reversed(rest))][::-1]
        place = next((one for one in turns if after[one] <= retained * after[0]), turns[-1])
        for item in rest[:place]:
            item.is_left_out = True
        return True


def view_added(item: Item, previous: str | None) -> Iterator[dict[str, Any]]:
    """Yields the events of a complete new item. previous: id of the item before it."""
    for kind in ("added", "done"):
        yield {"type": f"conversation.item.{kind}", "previous_item_id": previous, "item": item.view()}
