"""Prompts: chat messages made of text, images, audio and videos, and embeddings. Nothing is decoded or fetched.

GenerateArguments is the only list of a request's options, for both clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from omni_proto.brief import Brief
from omni_proto.client.tools import StructuredOutput, Tool, ToolCall, ToolChoice
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


Metadata = tuple[tuple[str, str | bytes], ...]
Sampling = Mapping[str, Mapping[str, Any]]
"""Sampling parameters by stage and by vLLM's name, e.g. {"thinker": {"temperature": 0.7, "max_tokens": 64}}."""


class GenerateArguments(TypedDict, total=False):
    """One request. Give exactly one prompt: text, chat, raw_text, token_ids or prompt_embeds."""

    text: str | None
    """One message of the user, to which the model's chat template is applied."""
    chat: ChatMessage | Sequence[ChatMessage] | None
    """A conversation, with images, audio and videos, to which the model's chat template is applied."""
    raw_text: str | None
    """A prompt that is used unchanged, without the chat template."""
    token_ids: Sequence[int] | None
    """The token ids of a prompt, used unchanged."""
    prompt_embeds: Buffer | None
    """A C-contiguous buffer [rows, hidden size] such as a numpy array: float32, float16, or uint16 with the bits of
    bfloat16. Needs google-crc32c and a stage that takes embeddings (get_stage().prompt_embeds)."""
    sampling: Sampling | None
    """Sampling parameters by stage and vLLM's name, e.g. {"thinker": {"temperature": 0.7}}."""
    seed: int | None
    """Seed of every stage whose sampling parameters set none."""
    modalities: Sequence[str]
    """Modalities to return: "text", "audio" and "transcript". Empty means all that the pipeline returns."""
    voice: str
    """Name of the voice; empty means the model's default."""
    encoding: str
    """Encoding of audio: "pcm_s16le" (the default) or "pcm_f32le"."""
    include_token_ids: bool
    """Return the token ids of the prompt and the text."""
    include_codec_tokens: bool
    """Return the codec tokens that the audio is made of."""
    include_timings: bool
    """Return the time of every engine output of each stage."""
    allow_partial: bool
    """If a later stage fails, return the results so far and StageFailed instead of an error."""
    priority: int
    """-1000 to 1000; requests with lower numbers are served earlier."""
    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""
    reply: str | Sequence[int] | None
    """Text or token ids to speak in place of a reply that the entry stage samples. Text is spoken unchanged; token ids
    are those that an earlier request returned."""
    tools: Sequence[Tool]
    """Functions that the model may call."""
    tool_choice: ToolChoice | None
    """"auto" (the default), "none", "required" or CallTool(NAME)."""
    structured_output: StructuredOutput | None
    """Format that the entry stage's text must have."""
    use_audio_in_video: bool
    """Whether the model also gets the audio tracks of the chat's videos. Set it in every turn of a conversation or in
    none."""
    template_arguments: Mapping[str, Any] | None
    """Further arguments of the chat template, e.g. {"enable_thinking": False}. Only for generic/llm."""
    timeout: float | None
    """Seconds that all attempts together may take; None means the pipeline's default."""
    request_id: str | None
    """Sent as x-request-id; appears in all logs."""
    traceparent: str | None
    """W3C trace context, forwarded to every stage."""
    metadata: Metadata
    """Further metadata of the call."""


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
