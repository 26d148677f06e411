"""Turns the arguments of a request into its messages: Start, MediaChunks or TensorChunks, and End. Pure; raises
ArgumentError."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from omni_proto.client.events import PCM_F32LE, PCM_S16LE
from omni_proto.client.prompt import (
    ChatMessage,
    EmbedsPrompt,
    GenerateArguments,
    MediaPart,
    Metadata,
    Part,
    as_chat,
    embeds_prompt,
    user,
)
from omni_proto.client.tools import add_tools, as_json, given_reply
from omni_proto.errors import ArgumentError
from omni_proto.media_headers import read_header
from omni_proto.media_headers.container import MediaHeaderError
from omni_proto.rpc.balance.choice import Affinity
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import End, GenerateRequest, Start

MAX_HASHED_BYTES: Final = 64 * 1024
"""Bytes of each part of a message that are hashed; conversations rarely differ only after them."""


def affinity_of(start: Start) -> Affinity | None:
    """Returns the affinity of a request: None without a chat.

    All turns of a conversation share its salt and its messages up to the first of the user. A request that contains an
    answer of the model is a later turn.
    """
    messages = start.chat.messages
    if not messages:
        return None
    digest = blake2b(start.cache_salt.encode(), digest_size=8)
    is_later_turn = False
    hashing = True
    for message in messages:
        if hashing:
            digest.update(message.role.encode() + b"\0")
            for part in message.parts:
                media = getattr(part, part.WhichOneof("part") or "text")
                data = media.encode() if isinstance(media, str) else media.data
                digest.update(len(data).to_bytes(8, "big") + data[:MAX_HASHED_BYTES])
        hashing = hashing and message.role != "user"
        is_later_turn = is_later_turn or message.role == "assistant"
    return Affinity(int.from_bytes(digest.digest(), "big"), is_later_turn)


MAX_INLINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of all media in a Start message; further media follow in MediaChunks."""
MEDIA_CHUNK_BYTES: Final = 1024 * 1024
LONGEST_S: Final = 1e9
"""Timeouts above this are shortened to it, because gRPC's clock overflows at about 7e9 s and the call then fails."""

_ENCODINGS: Final = {
    PCM_S16LE: sampling_pb2.AUDIO_ENCODING_PCM_S16LE,
    PCM_F32LE: sampling_pb2.AUDIO_ENCODING_PCM_F32LE,
}
_MODALITIES: Final = {
    "text": sampling_pb2.MODALITY_TEXT,
    "audio": sampling_pb2.MODALITY_AUDIO,
    "transcript": sampling_pb2.MODALITY_TRANSCRIPT,
}
_SAMPLING_FIELDS: Final = sampling_pb2.SamplingParams.DESCRIPTOR.fields_by_name
_PROMPTS: Final = ("text", "chat", "raw_text", "token_ids", "prompt_embeds")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]{1,256}\Z")


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


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request with the metadata and the timeout of its call."""

    request: PreparedRequest
    metadata: Metadata
    timeout_s: float | None


def prepare_call(arguments: GenerateArguments) -> PreparedCall:
    """Returns the call for these arguments. Raises ArgumentError; TypeError for an unknown argument."""
    if unknown := arguments.keys() - GenerateArguments.__annotations__.keys():
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
    try:
        request = prepare_request(arguments)
    except UnicodeEncodeError as error:
        field = next((name for name, value in arguments.items() if value is error.object), "")
        named = field or "a text of the request"
        raise ArgumentError(
            f"{named} holds half of a surrogate pair (character {error.start}), which UTF-8 does not have; replace it",
            field=field,
        ) from error
    metadata = call_metadata(arguments.get("request_id"), arguments.get("traceparent"), arguments.get("metadata", ()))
    return PreparedCall(request, metadata, check_timeout(arguments.get("timeout")))


def prepare_request(arguments: GenerateArguments) -> PreparedRequest:
    """Returns the messages of a request with exactly one of the five prompts. Raises ArgumentError naming the field."""
    text, chat, raw_text = arguments.get("text"), arguments.get("chat"), arguments.get("raw_text")
    token_ids, prompt_embeds = arguments.get("token_ids"), arguments.get("prompt_embeds")
    given = [name for name in _PROMPTS if arguments.get(name) is not None]
    if len(given) != 1:
        raise ArgumentError(f"give exactly one of {', '.join(_PROMPTS)}, got {' and '.join(given) or 'none'}")
    start = _start(arguments)
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
            raise ArgumentError("token_ids must be integers from 0 to 4294967295", field="token_ids") from error
        if not start.token_ids.ids:
            raise ArgumentError("token_ids must hold at least one id", field="token_ids")
    elif prompt_embeds is not None:
        embeds = embeds_prompt(prompt_embeds)
        start.prompt_embeds.CopyFrom(embeds.header)
    _set_template(start, arguments, is_templated=text is not None or chat is not None)
    size = start.ByteSize()
    if size > MAX_MESSAGE_BYTES - 64:
        raise ArgumentError(
            f"the prompt takes {size} bytes, at most {MAX_MESSAGE_BYTES} fit one message; shorten it", field="prompt"
        )
    return PreparedRequest(start, media, embeds)


def check_timeout(timeout: float | None) -> float | None:
    """Returns timeout, at most LONGEST_S. Raises ArgumentError unless it is None or a positive number of seconds."""
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ArgumentError(f"timeout must be a positive number of seconds or None, got {timeout}", field="timeout")
    return None if timeout is None else min(timeout, LONGEST_S)


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
            raise ArgumentError(f"{field} is not a sampling parameter; {hint}", field=field)
        if value is None:
            continue
        try:
            if name in ("stop", "stop_token_ids"):
                getattr(params, name).extend([value] if isinstance(value, str | int) else value)
            else:
                setattr(params, name, value)
        except (TypeError, ValueError) as error:
            kind = sampling_type(name)
            raise ArgumentError(
                f"{field} must be {kind}, got {type(value).__name__}, or is out of range", field=field
            ) from error
    return params


def sampling_type(name: str) -> str:
    """Returns the type of a sampling parameter, for messages."""
    field = _SAMPLING_FIELDS[name]
    kind = {field.TYPE_FLOAT: "float", field.TYPE_BOOL: "bool", field.TYPE_STRING: "str"}.get(field.type, "int")
    return f"a list of {kind}" if field.is_repeated else kind


def _start(arguments: GenerateArguments) -> Start:
    """Returns a Start with all options that any kind of prompt may have."""
    try:
        start = Start(
            allow_partial=arguments.get("allow_partial", False),
            priority=arguments.get("priority", 0),
            cache_salt=arguments.get("cache_salt", ""),
        )
    except UnicodeEncodeError:
        raise  # UnicodeEncodeError is a ValueError; prepare_call explains it
    except (TypeError, ValueError) as error:
        raise ArgumentError("priority must be an integer from -1000 to 1000, and cache_salt must be text") from error
    for stage, values in (arguments.get("sampling") or {}).items():
        if not isinstance(values, Mapping):
            raise ArgumentError(
                f"sampling[{stage}] must map parameter names to values, got {type(values).__name__}",
                field=f"sampling[{stage}]",
            )
        start.sampling[stage].CopyFrom(sampling_params(stage, values))
    seed = arguments.get("seed")
    if seed is not None:
        if not 0 <= seed < 2**64:
            raise ArgumentError(f"seed must be 0 or more and fit 64 bits, got {seed}", field="seed")
        start.seed = seed
    modalities = arguments.get("modalities", ())
    for modality in (modalities,) if isinstance(modalities, str) else modalities:
        if modality.lower() not in _MODALITIES:
            raise ArgumentError(
                f"modality {modality[:32]!r} is unknown; use {' or '.join(_MODALITIES)}", field="modalities"
            )
        start.modalities.append(_MODALITIES[modality.lower()])
    encoding = arguments.get("encoding", PCM_S16LE)
    if encoding not in _ENCODINGS:
        raise ArgumentError(f"encoding {encoding[:32]!r} is unknown; use {' or '.join(_ENCODINGS)}", field="encoding")
    start.audio.voice = arguments.get("voice", "")
    start.audio.encoding = _ENCODINGS[encoding]
    start.include.token_ids = arguments.get("include_token_ids", False)
    start.include.codec_tokens = arguments.get("include_codec_tokens", False)
    start.include.timings = arguments.get("include_timings", False)
    reply = arguments.get("reply")
    if reply is not None:
        start.reply.CopyFrom(given_reply(reply))
    structured_output = arguments.get("structured_output")
    if structured_output is not None:
        start.structured_output.CopyFrom(structured_output.to_proto())
    return start


def _set_template(start: Start, arguments: GenerateArguments, *, is_templated: bool) -> None:
    """Set the options of the chat template. Raises ArgumentError if the prompt does not use it."""
    tools, tool_choice = arguments.get("tools", ()), arguments.get("tool_choice")
    if tools or tool_choice is not None:
        if not is_templated:
            raise ArgumentError("tools and tool_choice need the chat template: give text or chat", field="tools")
        add_tools(start.chat, tools, tool_choice)
    if arguments.get("use_audio_in_video"):
        if arguments.get("chat") is None:
            raise ArgumentError(
                "use_audio_in_video is about the videos of a chat: give chat", field="use_audio_in_video"
            )
        start.chat.use_audio_in_video = True
    if template_arguments := arguments.get("template_arguments"):
        if not is_templated:
            raise ArgumentError(
                "template_arguments need the chat template: give text or chat", field="template_arguments"
            )
        start.chat.template_arguments = as_json(template_arguments, "template_arguments")


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
