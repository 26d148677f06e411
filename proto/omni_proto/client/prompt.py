"""Prompts: chat messages made of text, images, audio and videos, and embeddings. Nothing is decoded or fetched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omni_proto.brief import Brief
from omni_proto.client.tools import ToolCall
from omni_proto.errors import ArgumentError
from omni_proto.media_headers import Kind, describe_wrong, sniff
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.stage.v1.tensors_pb2 import TensorChunk, TensorHeader
from omni_proto.tensors import (
    CHUNK_BYTES,
    MAX_ROW_BYTES,
    PROMPT_EMBEDS,
    MissingExtraError,
    crc32c,
    header_for,
    prompt_embeds_spec,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROLES: Final = ("system", "user", "assistant", "tool")
_EMBEDS_DTYPES: Final = {"f": "float32", "e": "float16", "H": "bfloat16"}
"""Element types by the format of a buffer's elements."""


@dataclass(frozen=True, slots=True, repr=False)
class MediaPart(Brief):
    """An encoded image, audio or video file in a chat message."""

    kind: Kind
    data: bytes
    """The file's content."""
    media_type: str
    """The type that the content shows, such as image/png, audio/wav, audio/mpeg or video/mp4."""


Part = str | MediaPart
"""One part of a chat message: text, an image, audio or a video."""


@dataclass(frozen=True, slots=True, repr=False)
class ChatMessage(Brief):
    """One message of a conversation. Raises ArgumentError if role is unknown, a part has a wrong type, or a message
    without tool_calls has no parts."""

    role: str
    """"system", "user", "assistant" or "tool"."""
    parts: tuple[Part, ...]
    """The parts of the message, in order; a message with tool_calls may have none."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the assistant called."""
    tool_call_id: str = ""
    """Id of the tool call that a message of the role "tool" answers."""
    name: str = ""
    """Name of the speaker, or of the tool that answers; the chat template may ignore it."""

    def __post_init__(self) -> None:
        # A single part is common; without this, a str would be split into characters.
        parts = (self.parts,) if isinstance(self.parts, str | MediaPart) else tuple(self.parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        if self.role not in ROLES:
            raise ArgumentError(f"chat role {self.role[:32]!r} is unknown; use one of {', '.join(ROLES)}", field="chat")
        if not parts and not self.tool_calls:
            raise ArgumentError(f"a chat message of {self.role!r} needs at least one part", field="chat")
        for part in parts:
            if not isinstance(part, str | MediaPart):
                raise ArgumentError(
                    f"a part of a chat message must be str or MediaPart, got {type(part).__name__}", field="chat"
                )


def system(*parts: Part) -> ChatMessage:
    """Returns a system message."""
    return ChatMessage("system", parts)


def user(*parts: Part) -> ChatMessage:
    """Returns a message of the user."""
    return ChatMessage("user", parts)


def assistant(*parts: Part, tool_calls: Sequence[ToolCall] = ()) -> ChatMessage:
    """Returns an earlier message of the model, with the tools that it called."""
    return ChatMessage("assistant", parts, tuple(tool_calls))


def tool_result(tool_call_id: str, text: str) -> ChatMessage:
    """Returns the message with a tool's answer to a call of the model."""
    return ChatMessage("tool", (text,), tool_call_id=tool_call_id)


def image_part(source: bytes | str | Path) -> MediaPart:
    """Returns a PNG, JPEG, WebP or GIF image, given as bytes or as a file's path. Of an animation, the model sees the
    first frame. Raises ArgumentError; OSError of the file."""
    data = _read(source)
    return MediaPart("image", data, _expect(data, "image"))


def audio_part(source: bytes | str | Path) -> MediaPart:
    """Returns audio, given as bytes or as a file's path: WAV, FLAC, MP3, AAC, Ogg, WebM, Matroska or M4A (MP4).

    Raises ArgumentError; OSError of the file.
    """
    data = _read(source)
    return MediaPart("audio", data, _expect(data, "audio"))


def video_part(source: bytes | str | Path) -> MediaPart:
    """Returns an MP4, WebM, Matroska or QuickTime video, given as bytes or as a file's path.

    The request's use_audio_in_video decides whether the audio tracks of its videos are used. Raises ArgumentError;
    OSError of the file.
    """
    data = _read(source)
    return MediaPart("video", data, _expect(data, "video"))


def as_chat(chat: ChatMessage | Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Returns the messages of a conversation. Raises ArgumentError."""
    if isinstance(chat, str):
        raise ArgumentError("chat must hold ChatMessage, got str; for one text of the user give text=", field="chat")
    messages = (chat,) if isinstance(chat, ChatMessage) else tuple(chat)
    if not messages:
        raise ArgumentError("chat must hold at least one message", field="chat")
    for message in messages:
        if not isinstance(message, ChatMessage):
            raise ArgumentError(
                f"chat must hold ChatMessage, got {type(message).__name__}; see user() and system()", field="chat"
            )
    return messages


@dataclass(frozen=True, slots=True)
class EmbedsPrompt:
    """Embeddings [rows, hidden size], ready to send; a retry sends them again."""

    header: TensorHeader
    """The header that Start carries."""
    data: memoryview
    """The rows as bytes."""

    def messages(self) -> Iterator[GenerateRequest]:
        """Yields the rows in chunks of about 1 MiB. Each chunk has only complete rows, and a checksum."""
        rows = self.header.max_rows
        row_bytes = len(self.data) // rows
        step = max(1, CHUNK_BYTES // row_bytes)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            part = bytes(self.data[begin * row_bytes : end * row_bytes])
            chunk = TensorChunk(
                name=PROMPT_EMBEDS,
                row_offset=begin,
                rows=end - begin,
                crc32c=crc32c(part),
                last=end == rows,
                data=part,
            )
            yield GenerateRequest(tensor=chunk)


def embeds_prompt(array: Buffer) -> EmbedsPrompt:
    """Returns the prompt for a C-contiguous buffer [rows, hidden size], such as a numpy array.

    Elements are float32 or float16; uint16 means the bits of bfloat16 (torch: `tensor.view(torch.uint16).numpy()`).
    Raises ArgumentError.
    """
    try:
        crc32c(b"")  # reports a missing package before the call begins
    except MissingExtraError as error:
        raise ArgumentError(
            "prompt_embeds needs the package google-crc32c; install omnipipeline[stage]", field="prompt_embeds"
        ) from error
    try:
        view = memoryview(array)
    except TypeError as error:
        raise ArgumentError(
            f"prompt_embeds must be a buffer such as a numpy array, got {type(array).__name__}", field="prompt_embeds"
        ) from error
    dtype = _EMBEDS_DTYPES.get(view.format.removeprefix("<"))
    if dtype is None or view.ndim != 2 or not view.c_contiguous or not view.nbytes:
        raise ArgumentError(
            "prompt_embeds must be [rows, hidden size], C-contiguous and not empty, of float32, float16, or uint16 for "
            "the bits of bfloat16",
            field="prompt_embeds",
        )
    rows, hidden_size = (int(size) for size in view.shape or ())
    if view.nbytes // rows > MAX_ROW_BYTES:
        raise ArgumentError(
            f"a row of prompt_embeds has {view.nbytes // rows} bytes, at most {MAX_ROW_BYTES}", field="prompt_embeds"
        )
    return EmbedsPrompt(header_for(prompt_embeds_spec(hidden_size, dtype), rows), view.cast("B"))


def _read(source: bytes | str | Path) -> bytes:
    return bytes(source) if isinstance(source, bytes | bytearray | memoryview) else Path(source).read_bytes()


def _expect(data: bytes, kind: Kind) -> str:
    found = sniff(data, kind)
    if found is None:
        raise ArgumentError(f"the {kind} {describe_wrong(data, kind)}")
    return found
