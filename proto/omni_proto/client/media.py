"""Prompts with media: chat messages made of text, images and audio. Nothing is decoded and nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from omni_proto.client.tools import ToolCall
from omni_proto.errors import ArgumentError

ROLES: Final = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An encoded image or piece of audio of a chat message."""

    kind: Literal["image", "audio"]
    data: bytes
    """The file's content."""
    media_type: str
    """image/png, image/jpeg, audio/wav or audio/flac."""


Part = str | MediaPart
"""One part of a chat message: text, an image or audio."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. Raises ArgumentError if role is unknown or there are no parts."""

    role: str
    """"system", "user", "assistant" or "tool"."""
    parts: tuple[Part, ...]
    """The parts of the message, in order; a message with tool_calls may have none."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the assistant called."""
    tool_call_id: str = ""
    """The call that a message of the role "tool" answers."""

    def __post_init__(self) -> None:
        # A single part is the common case; a str would otherwise fall apart into characters.
        parts = (self.parts,) if isinstance(self.parts, str | MediaPart) else tuple(self.parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        if self.role not in ROLES:
            raise ArgumentError(f"chat role {self.role[:32]!r} is unknown; use one of {', '.join(ROLES)}")
        if not parts and not self.tool_calls:
            raise ArgumentError(f"a chat message of {self.role!r} needs at least one part")
        for part in parts:
            if not isinstance(part, str | MediaPart):
                raise ArgumentError(f"a part of a chat message must be str or MediaPart, got {type(part).__name__}")


def system(*parts: Part) -> ChatMessage:
    """Returns the system message."""
    return ChatMessage("system", parts)


def user(*parts: Part) -> ChatMessage:
    """What the user says."""
    return ChatMessage("user", parts)


def assistant(*parts: Part, tool_calls: Sequence[ToolCall] = ()) -> ChatMessage:
    """What the model said before, and the tools that it called."""
    return ChatMessage("assistant", parts, tuple(tool_calls))


def tool_result(tool_call_id: str, text: str) -> ChatMessage:
    """What the tool answered that the model called."""
    return ChatMessage("tool", (text,), tool_call_id=tool_call_id)


def image_part(source: bytes | str | Path) -> MediaPart:
    """An image, PNG or JPEG, given as bytes or as the path of a file. Raises ArgumentError; OSError of the file."""
    data = _read(source)
    return MediaPart("image", data, _expect(data, "image"))


def audio_part(source: bytes | str | Path) -> MediaPart:
    """Audio, WAV or FLAC, given as bytes or as the path of a file. Raises ArgumentError; OSError of the file."""
    data = _read(source)
    return MediaPart("audio", data, _expect(data, "audio"))


def sniff_media_type(data: bytes) -> str | None:
    """Returns the media type by its first bytes; None if it is none that a stage takes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data.startswith(b"fLaC"):
        return "audio/flac"
    return None


def as_chat(chat: ChatMessage | Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Returns the messages of a conversation. Raises ArgumentError."""
    if isinstance(chat, str):
        raise ArgumentError("chat must hold ChatMessage, got str; what the user says is text=")
    messages = (chat,) if isinstance(chat, ChatMessage) else tuple(chat)
    if not messages:
        raise ArgumentError("chat must hold at least one message")
    for message in messages:
        if not isinstance(message, ChatMessage):
            raise ArgumentError(f"chat must hold ChatMessage, got {type(message).__name__}; see user() and system()")
    return messages


def _read(source: bytes | str | Path) -> bytes:
    return bytes(source) if isinstance(source, bytes | bytearray | memoryview) else Path(source).read_bytes()


def _expect(data: bytes, kind: str) -> str:
    found = sniff_media_type(data)
    if found is None or not found.startswith(f"{kind}/"):
        wanted = "PNG or JPEG" if kind == "image" else "WAV or FLAC"
        raise ArgumentError(f"{kind} must be {wanted} by its first bytes; got {found or 'something else'}")
    return found
