"""Start -> plain data, validated with the path of every wrong field; and plain data -> events.

The only module that knows both the messages and the DTOs of `models.component`. Errors name fields and limits, never
what a field holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from omni_proto.stage.v1 import events_pb2, prompt_pb2, sampling_pb2, stage_service_pb2
from omni_proto.stage_config import Limits, SamplingDefaults
from omni_stage.errors import InvalidMediaError, InvalidRequestError, PromptTooLongError, RequestTooLargeError
from omni_stage.models.component import AudioPart, ChatMessage, FinishReason, ImagePart, TextPart, UserPrompt
from omni_stage.service.media import decode_audio, decode_image

ROLES = ("system", "user", "assistant")
MAX_INLINE_MEDIA_BYTES = 4 << 20
MAX_MESSAGES = 1024
MAX_PARTS = 1024
_MESSAGE_OVERHEAD_TOKENS = 64
"""More than any chat template adds to a message."""
_TEMPLATE_OVERHEAD_TOKENS = 512
"""More than a default system prompt takes."""
_REPEATED = ("stop_token_ids", "stop")
_FLOATS = frozenset(
    ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "guidance_scale")
)
_ALIASES = {info.alias or name: name for name, info in SamplingDefaults.model_fields.items()}

_FINISH = {
    FinishReason.STOP: events_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: events_pb2.FINISH_REASON_LENGTH,
    FinishReason.DIFFUSION_DONE: events_pb2.FINISH_REASON_DIFFUSION_DONE,
    FinishReason.EMPTY_INPUT: events_pb2.FINISH_REASON_EMPTY_INPUT,
}


def finish_reason_to_proto(reason: FinishReason) -> events_pb2.FinishReason:
    """The enum value of a finish reason."""
    return _FINISH[reason]


def sampling_from_proto(message: sampling_pb2.SamplingParams, field: str) -> SamplingDefaults:
    """Sampling parameters that a request sets. Raises InvalidRequestError naming the wrong parameter under field."""
    data: dict[str, object] = {}
    for descriptor, value in message.ListFields():
        if descriptor.name in _REPEATED:
            data[descriptor.name] = list(value)
        elif descriptor.name in _FLOATS:
            # The wire has 32 bits; seven digits give back the decimal that the caller wrote (0.9, not 0.89999998).
            data[descriptor.name] = float(format(value, ".7g"))
        else:
            data[descriptor.name] = value
    try:
        return SamplingDefaults.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = _ALIASES.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        raise InvalidRequestError(f"{name}: {first['msg']}", field=f"{field}.{name}") from None


def check_sampling_names(sampling: Mapping[str, sampling_pb2.SamplingParams], stages: Sequence[str]) -> None:
    """Check every stage's parameters, so that a wrong one fails before any stage works. Raises InvalidRequestError."""
    for name in sorted(sampling):
        if name not in stages:
            listed = ", ".join(stages)
            # The name is the caller's text: not repeated.
            raise InvalidRequestError(
                f"start.sampling names a stage that does not exist; known stages: {listed}",
                field="start.sampling",
                limit=listed,
            )
        sampling_from_proto(sampling[name], f"start.sampling[{name}]")


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """One image or sound of a prompt: where its bytes are."""

    field: str
    is_image: bool
    media_type: str
    data: bytes
    media_id: int | None
    size: int


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A user's prompt before its media arrived."""

    text: str | None
    chat: prompt_pb2.ChatPrompt | None
    token_ids: tuple[int, ...] | None
    media: tuple[MediaSlot, ...]
    max_prompt_tokens: int
    """No tokenizer makes more of it: a token is at least one byte."""

    @property
    def announced(self) -> dict[int, int]:
        """Total bytes of media that follow as chunks, by media id."""
        return {slot.media_id: slot.size for slot in self.media if slot.media_id is not None}

    @property
    def media_bytes(self) -> int:
        """Encoded bytes of all media."""
        return sum(slot.size for slot in self.media)


def plan_prompt(start: stage_service_pb2.Start, limits: Limits, max_model_len: int) -> PromptPlan:
    """Validate the prompt of an entry stage.

    Raises InvalidRequestError, InvalidMediaError, PromptTooLongError, RequestTooLargeError.
    """
    kind = start.WhichOneof("input")
    if kind == "text":
        _check_chars(len(start.text), limits, "start.text")
        if not start.text:
            raise InvalidRequestError("the text is empty", field="start.text")
        return PromptPlan(start.text, None, None, (), min(len(start.text.encode()) + 8, max_model_len))
    if kind == "token_ids":
        return _plan_tokens(start.token_ids.ids, max_model_len)
    if kind == "chat":
        return _plan_chat(start.chat, limits, max_model_len)
    raise InvalidRequestError("the entry stage takes text, chat or token_ids as input", field="start.input")


def build_prompt(plan: PromptPlan, received: Mapping[int, bytearray]) -> UserPrompt:
    """The prompt with its media decoded; received holds the chunked ones. CPU work: run in a thread.

    Raises InvalidMediaError.
    """
    if plan.chat is None:
        return UserPrompt(text=plan.text, token_ids=plan.token_ids)
    slots = iter(plan.media)
    messages = []
    for message in plan.chat.messages:
        parts = [
            TextPart(part.text) if part.WhichOneof("part") == "text" else _decode(next(slots), received)
            for part in message.parts
        ]
        messages.append(ChatMessage(message.role, parts))
    return UserPrompt(messages=messages)


def _decode(slot: MediaSlot, received: Mapping[int, bytearray]) -> ImagePart | AudioPart:
    data = slot.data if slot.media_id is None else bytes(received[slot.media_id])
    if slot.is_image:
        return decode_image(data, slot.media_type, slot.field)
    return decode_audio(data, slot.media_type, slot.field)


def _plan_tokens(ids: Sequence[int], max_model_len: int) -> PromptPlan:
    if not ids:
        raise InvalidRequestError("token_ids is empty", field="start.token_ids.ids")
    if len(ids) >= max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens; the engine's longest sequence, output included, is {max_model_len}",
            field="start.token_ids.ids",
            limit=f"{max_model_len} tokens",
        )
    if max(ids) >= 1 << 31:
        raise InvalidRequestError("a token id does not fit 31 bits", field="start.token_ids.ids", limit=(1 << 31) - 1)
    return PromptPlan(None, None, tuple(ids), (), len(ids))


def _plan_chat(chat: prompt_pb2.ChatPrompt, limits: Limits, max_model_len: int) -> PromptPlan:
    if not 1 <= len(chat.messages) <= MAX_MESSAGES:
        raise InvalidRequestError(
            f"a chat has 1 to {MAX_MESSAGES} messages, got {len(chat.messages)}",
            field="start.chat.messages",
            limit=MAX_MESSAGES,
        )
    media: list[MediaSlot] = []
    chars = tokens = 0
    for number, message in enumerate(chat.messages):
        path = f"start.chat.messages[{number}]"
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"role must be one of {', '.join(ROLES)}", field=f"{path}.role", limit=", ".join(ROLES)
            )
        if not 1 <= len(message.parts) <= MAX_PARTS:
            raise InvalidRequestError(
                f"a message has 1 to {MAX_PARTS} parts, got {len(message.parts)}",
                field=f"{path}.parts",
                limit=MAX_PARTS,
            )
        tokens += _MESSAGE_OVERHEAD_TOKENS
        for index, part in enumerate(message.parts):
            kind = part.WhichOneof("part")
            if kind == "text":
                chars += len(part.text)
                tokens += len(part.text.encode())
            elif kind in ("image", "audio"):
                is_image = kind == "image"
                media.append(
                    _plan_medium(
                        part.image if is_image else part.audio, f"{path}.parts[{index}].{kind}", is_image, limits
                    )
                )
            else:
                raise InvalidRequestError("a part holds text, an image or audio", field=f"{path}.parts[{index}]")
    _check_chars(chars, limits, "start.chat")
    _check_media(media, limits)
    upper = max_model_len if media else min(tokens + _TEMPLATE_OVERHEAD_TOKENS, max_model_len)
    return PromptPlan(None, chat, None, tuple(media), upper)


def _plan_medium(message: prompt_pb2.Media, field: str, is_image: bool, limits: Limits) -> MediaSlot:
    source = message.WhichOneof("source")
    if source == "data":
        if len(message.data) > MAX_INLINE_MEDIA_BYTES:
            raise RequestTooLargeError(
                f"inline media has {len(message.data)} bytes, at most {MAX_INLINE_MEDIA_BYTES}; send it as MediaChunks",
                field=field,
                limit=f"{MAX_INLINE_MEDIA_BYTES} bytes",
            )
        slot = MediaSlot(field, is_image, message.media_type, message.data, None, len(message.data))
    elif source == "chunked":
        slot = MediaSlot(
            field, is_image, message.media_type, b"", message.chunked.media_id, message.chunked.total_bytes
        )
    else:
        raise InvalidMediaError("a medium has data or chunked", field=field)
    if slot.size == 0:
        raise InvalidMediaError("a medium holds no bytes", field=field)
    if slot.size > limits.max_media_bytes:
        raise RequestTooLargeError(
            f"a medium has {slot.size} bytes, at most {limits.max_media_bytes} (limits.maxMediaBytes)",
            field=field,
            limit=f"{limits.max_media_bytes} bytes",
        )
    return slot


def _check_media(media: Sequence[MediaSlot], limits: Limits) -> None:
    if len(media) > limits.max_media_per_request:
        raise RequestTooLargeError(
            f"the request has {len(media)} media, at most {limits.max_media_per_request} (limits.maxMediaPerRequest)",
            field="start.chat",
            limit=limits.max_media_per_request,
        )
    ids = [slot.media_id for slot in media if slot.media_id is not None]
    if len(set(ids)) != len(ids):
        raise InvalidRequestError("two media have the same media_id", field="start.chat")


def _check_chars(count: int, limits: Limits, field: str) -> None:
    if count > limits.max_prompt_chars:
        raise RequestTooLargeError(
            f"the text has {count} characters, at most {limits.max_prompt_chars} (limits.maxPromptChars)",
            field=field,
            limit=f"{limits.max_prompt_chars} characters",
        )
