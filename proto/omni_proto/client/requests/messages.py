"""Turns the arguments of a request into its messages: Start, MediaChunks or TensorChunks, and End. Pure; raises
ArgumentError."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omni_proto.client.requests.embeds import EmbedsPrompt, embeds_prompt
from omni_proto.client.requests.media import ChatMessage, MediaPart, Part, as_chat, user
from omni_proto.client.responses.events import PCM_F32LE, PCM_S16LE
from omni_proto.client.tools import StructuredOutput, Tool, ToolChoice, add_tools, as_json, given_reply
from omni_proto.errors import ArgumentError
from omni_proto.media.header_error import MediaHeaderError
from omni_proto.media.media_header import read_header
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import End, GenerateRequest, Start

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of all media in a Start message; further media follow in MediaChunks."""
MEDIA_CHUNK_BYTES: Final = 1024 * 1024

Sampling = Mapping[str, Mapping[str, Any]]
"""Sampling parameters by stage and by vLLM's name, e.g. {"thinker": {"temperature": 0.7, "max_tokens": 64}}."""

_ENCODINGS: Final = {
    PCM_S16LE: sampling_pb2.AUDIO_ENCODING_PCM_S16LE,
    PCM_F32LE: sampling_pb2.AUDIO_ENCODING_PCM_F32LE,
}
_MODALITIES: Final = {"text": sampling_pb2.MODALITY_TEXT, "audio": sampling_pb2.MODALITY_AUDIO}
_SAMPLING_FIELDS: Final = sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """The options of a request: everything except the prompt."""

    sampling: Sampling | None = None
    seed: int | None = None
    modalities: Sequence[str] = ()
    voice: str = ""
    encoding: str = PCM_S16LE
    include_token_ids: bool = False
    include_codec_tokens: bool = False
    include_timings: bool = False
    allow_partial: bool = False
    priority: int = 0
    cache_salt: str = ""
    reply: str | Sequence[int] | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice | None = None
    structured_output: StructuredOutput | None = None
    use_audio_in_video: bool = False
    template_arguments: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request, ready to send; a retry sends it again."""

    start: Start
    media: tuple[tuple[int, bytes], ...]
    """Media that follow Start: (media_id, content)."""
    embeds: EmbedsPrompt | None = None
    """Embeddings that follow Start."""

    def messages(self) -> Iterator[GenerateRequest]:
        """Yields Start, the media or the embeddings in chunks, then End."""
        yield GenerateRequest(start=self.start)
        for media_id, data in self.media:
            for offset in range(0, len(data), MEDIA_CHUNK_BYTES):
                piece = data[offset : offset + MEDIA_CHUNK_BYTES]
                yield GenerateRequest(media=prompt_pb2.MediaChunk(media_id=media_id, offset=offset, data=piece))
        if self.embeds is not None:
            yield from self.embeds.messages()
        yield GenerateRequest(end=End())


def prepare_request(
    *,
    text: str | None = None,
    chat: ChatMessage | Sequence[ChatMessage] | None = None,
    raw_text: str | None = None,
    token_ids: Sequence[int] | None = None,
    prompt_embeds: Buffer | None = None,
    options: GenerateOptions,
) -> PreparedRequest:
    """Returns the messages of a request with exactly one of the five prompts. Raises ArgumentError naming the field."""
    prompts = {
        "text": text,
        "chat": chat,
        "raw_text": raw_text,
        "token_ids": token_ids,
        "prompt_embeds": prompt_embeds,
    }
    given = [name for name, value in prompts.items() if value is not None]
    if len(given) != 1:
        raise ArgumentError(f"give exactly one of {', '.join(prompts)}, got {' and '.join(given) or 'none'}")
    start = _start(options)
    media: tuple[tuple[int, bytes], ...] = ()
    embeds: EmbedsPrompt | None = None
    if text is not None:
        media = _add_chat(start, (user(text),))
    elif chat is not None:
        media = _add_chat(start, as_chat(chat))
    elif raw_text is not None:
        start.text = raw_text
    elif token_ids is not None:
        try:
            start.token_ids.ids.extend(token_ids)
        except (TypeError, ValueError) as error:
            raise ArgumentError("token_ids must be integers from 0 to 4294967295") from error
        if not start.token_ids.ids:
            raise ArgumentError("token_ids must hold at least one id")
    elif prompt_embeds is not None:
        embeds = embeds_prompt(prompt_embeds)
        start.prompt_embeds.CopyFrom(embeds.header)
    if options.tools or options.tool_choice is not None:
        if text is None and chat is None:
            raise ArgumentError("tools and tool_choice need the chat template: give text or chat")
        add_tools(start.chat, options.tools, options.tool_choice)
    if options.use_audio_in_video:
        if chat is None:
            raise ArgumentError("use_audio_in_video is about the videos of a chat: give chat")
        start.chat.use_audio_in_video = True
    if options.template_arguments:
        if text is None and chat is None:
            raise ArgumentError("template_arguments need the chat template: give text or chat")
        start.chat.template_arguments = as_json(options.template_arguments, "template_arguments")
    size = start.ByteSize()
    if size > MAX_MESSAGE_BYTES - 64:
        raise ArgumentError(f"the prompt takes {size} bytes, at most {MAX_MESSAGE_BYTES} fit one message; shorten it")
    return PreparedRequest(start, media, embeds)


def call_metadata(
    request_id: str | None, traceparent: str | None, extra: Sequence[tuple[str, str | bytes]] = ()
) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the metadata of a call. Raises ArgumentError if request_id or traceparent is not a valid header value."""
    metadata: list[tuple[str, str | bytes]] = list(extra)
    for key, value in (("x-request-id", request_id), ("traceparent", traceparent)):
        if value is None:
            continue
        if not _HEADER_VALUE.match(value):
            raise ArgumentError(f"{key} must be 1 to 256 printable ASCII characters without blanks")
        metadata.append((key, value))
    return tuple(metadata)


def sampling_params(stage: str, values: Mapping[str, Any]) -> sampling_pb2.SamplingParams:
    """Returns the sampling parameters of one stage; a value of None means not set.

    Raises ArgumentError, which names the field.
    """
    params = sampling_pb2.SamplingParams()
    for name, value in values.items():
        field = f"sampling[{stage}].{name}"
        if name not in _SAMPLING_FIELDS:
            close = difflib.get_close_matches(str(name), _SAMPLING_FIELDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(_SAMPLING_FIELDS)}"
            raise ArgumentError(f"{field} is not a sampling parameter; {hint}")
        if value is None:
            continue
        try:
            if name in ("stop", "stop_token_ids"):
                getattr(params, name).extend([value] if isinstance(value, str | int) else value)
            else:
                setattr(params, name, value)
        except (TypeError, ValueError) as error:
            kind = sampling_type(name)
            raise ArgumentError(f"{field} must be {kind}, got {type(value).__name__}, or is out of range") from error
    return params


def sampling_type(name: str) -> str:
    """Returns the type of a sampling parameter, for messages."""
    field = _SAMPLING_FIELDS[name]
    kind = {field.TYPE_FLOAT: "float", field.TYPE_BOOL: "bool", field.TYPE_STRING: "str"}.get(field.type, "int")
    return f"a list of {kind}" if field.is_repeated else kind


def _start(options: GenerateOptions) -> Start:
    try:
        start = Start(allow_partial=options.allow_partial, priority=options.priority, cache_salt=options.cache_salt)
    except UnicodeEncodeError:
        raise  # UnicodeEncodeError is a ValueError; prepare_call explains it
    except (TypeError, ValueError) as error:
        raise ArgumentError("priority must be an integer from -1000 to 1000, and cache_salt must be text") from error
    for stage, values in (options.sampling or {}).items():
        if not isinstance(values, Mapping):
            raise ArgumentError(f"sampling[{stage}] must map parameter names to values, got {type(values).__name__}")
        start.sampling[stage].CopyFrom(sampling_params(stage, values))
    if options.seed is not None:
        if not 0 <= options.seed < 2**64:
            raise ArgumentError(f"seed must be 0 or more and fit 64 bits, got {options.seed}")
        start.seed = options.seed
    for modality in (options.modalities,) if isinstance(options.modalities, str) else options.modalities:
        if modality.lower() not in _MODALITIES:
            raise ArgumentError(f"modality {modality[:32]!r} is unknown; use {' or '.join(_MODALITIES)}")
        start.modalities.append(_MODALITIES[modality.lower()])
    if options.encoding not in _ENCODINGS:
        raise ArgumentError(f"encoding {options.encoding[:32]!r} is unknown; use {' or '.join(_ENCODINGS)}")
    start.audio.voice = options.voice
    start.audio.encoding = _ENCODINGS[options.encoding]
    start.include.token_ids = options.include_token_ids
    start.include.codec_tokens = options.include_codec_tokens
    start.include.timings = options.include_timings
    if options.reply is not None:
        start.reply.CopyFrom(given_reply(options.reply))
    if options.structured_output is not None:
        start.structured_output.CopyFrom(options.structured_output.to_proto())
    return start


def _add_chat(start: Start, messages: Sequence[ChatMessage]) -> tuple[tuple[int, bytes], ...]:
    chunked: list[tuple[int, bytes]] = []
    inline = 0
    for message in messages:
        target = start.chat.messages.add(role=message.role, tool_call_id=message.tool_call_id, name=message.name)
        for call in message.tool_calls:
            target.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
        for part in message.parts:
            fits = isinstance(part, MediaPart) and inline + len(part.data) <= MAX_INLINE_BYTES
            media_id = len(chunked) + 1
            target.parts.append(_content_part(part, inline=fits, media_id=media_id))
            if not isinstance(part, MediaPart):
                continue
            if fits:
                inline += len(part.data)
            else:
                chunked.append((media_id, part.data))
    return tuple(chunked)


def _decoded_bytes(part: MediaPart) -> int:
    """Returns the decoded size by the file's header; 0 if the header does not state it, or if it is invalid, which the
    stage will report."""
    try:
        return read_header(part.data, part.kind).decoded_bytes
    except MediaHeaderError:
        return 0


def _content_part(part: Part, *, inline: bool, media_id: int) -> prompt_pb2.ContentPart:
    if isinstance(part, str):
        return prompt_pb2.ContentPart(text=part)
    media = prompt_pb2.Media(media_type=part.media_type)
    if inline:
        media.data = part.data
    else:
        media.chunked.media_id = media_id
        media.chunked.total_bytes = len(part.data)
        media.chunked.decoded_bytes = _decoded_bytes(part)
    content = prompt_pb2.ContentPart()
    getattr(content, part.kind).CopyFrom(media)
    return content
