"""The prompt of a request: validated with the path of every wrong field, then the component's UserPrompt. Pure.

Errors name fields and limits, never what a field holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omni_proto.stage.v1 import prompt_pb2, stage_service_pb2
from omni_proto.stage_config import Limits
from omni_stage.errors import InvalidRequestError, PromptTooLongError, RequestTooLargeError
from omni_stage.models.component import AudioPart, ChatMessage, ImagePart, TextPart, UserPrompt
from omni_stage.service.media.planning import MediaRules, MediaSlot, check_media, plan_medium

ROLES = ("system", "user", "assistant")
MAX_PARTS = 1024
"""Of all messages of a chat together: what a conversation costs does not depend on how it is cut."""
_LIGHT_PARTS = 64
_MESSAGE_OVERHEAD_TOKENS = 64
"""More than any chat template adds to a message."""
_TEMPLATE_OVERHEAD_TOKENS = 512
"""More than a default system prompt takes."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A user's prompt before its media arrived."""

    text: str | None
    chat: prompt_pb2.ChatPrompt | None
    token_ids: tuple[int, ...] | None
    media: tuple[MediaSlot, ...]
    max_prompt_tokens: int
    """No tokenizer makes more of it: a token is at least one byte."""
    embeds: bool = False
    """Whether embeddings follow in place of text, chat and token ids."""

    @property
    def announced(self) -> dict[int, int]:
        """Total bytes of media that follow as chunks, by media id."""
        return {slot.media_id: slot.size for slot in self.media if slot.media_id is not None}

    @property
    def media_bytes(self) -> int:
        """Bytes that the stage holds for all media: encoded, decoded and as the engine's input."""
        return sum(slot.held_bytes for slot in self.media)


def is_light(start: stage_service_pb2.Start) -> bool:
    """Whether planning takes well below a millisecond: no media, whose headers are read, and few parts."""
    messages = start.chat.messages
    if len(messages) > _LIGHT_PARTS or sum(len(message.parts) for message in messages) > _LIGHT_PARTS:
        return False
    return all(part.WhichOneof("part") == "text" for message in messages for part in message.parts)


def plan_prompt(
    start: stage_service_pb2.Start, limits: Limits, max_model_len: int, media: MediaRules | None = None
) -> PromptPlan:
    """Validate the prompt of an entry stage; `media` is None where the model takes text alone.

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
    if kind == "prompt_embeds":
        return PromptPlan(None, None, None, (), min(start.prompt_embeds.max_rows, max_model_len), embeds=True)
    if kind == "chat":
        return _plan_chat(start.chat, limits, max_model_len, media)
    raise InvalidRequestError(
        "the entry stage takes text, chat, token_ids or prompt_embeds as input", field="start.input"
    )


def build_prompt(plan: PromptPlan, decoded: Sequence[ImagePart | AudioPart] = ()) -> UserPrompt:
    """Returns the prompt; `decoded` are the media of the plan, in its order."""
    if plan.chat is None:
        return UserPrompt(text=plan.text, token_ids=plan.token_ids)
    media = iter(decoded)
    return UserPrompt(
        messages=[
            ChatMessage(
                message.role,
                [TextPart(part.text) if part.WhichOneof("part") == "text" else next(media) for part in message.parts],
            )
            for message in plan.chat.messages
        ]
    )


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


def _plan_chat(chat: prompt_pb2.ChatPrompt, limits: Limits, max_model_len: int, rules: MediaRules | None) -> PromptPlan:
    _check_size(chat, limits)
    media: list[MediaSlot] = []
    chars = tokens = 0
    for number, message in enumerate(chat.messages):
        path = f"start.chat.messages[{number}]"
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"role must be one of {', '.join(ROLES)}", field=f"{path}.role", limit=", ".join(ROLES)
            )
        tokens += _MESSAGE_OVERHEAD_TOKENS
        for index, part in enumerate(message.parts):
            kind = part.WhichOneof("part")
            if kind == "text":
                chars += len(part.text)
                tokens += len(part.text.encode())
            elif kind in ("image", "audio"):
                field = f"{path}.parts[{index}].{kind}"
                if rules is None:
                    raise InvalidRequestError("this model reads text only; leave images and audio out", field=field)
                media.append(plan_medium(part.image if kind == "image" else part.audio, field, kind == "image", rules))
            else:
                raise InvalidRequestError("a part holds text, an image or audio", field=f"{path}.parts[{index}]")
    _check_chars(chars, limits, "start.chat")
    if rules is not None:
        check_media(media, rules)
    upper = max_model_len if media else min(tokens + _TEMPLATE_OVERHEAD_TOKENS, max_model_len)
    return PromptPlan(None, chat, None, tuple(media), upper)


def _check_size(chat: prompt_pb2.ChatPrompt, limits: Limits) -> None:
    """How many messages, parts and media there are, before any is read. Raises InvalidRequestError and its kin."""
    if not 1 <= len(chat.messages) <= MAX_PARTS:
        raise InvalidRequestError(
            f"a chat has 1 to {MAX_PARTS} messages, got {len(chat.messages)}",
            field="start.chat.messages",
            limit=MAX_PARTS,
        )
    parts = 0
    for number, message in enumerate(chat.messages):
        if not message.parts:
            raise InvalidRequestError(
                "a message has at least one part", field=f"start.chat.messages[{number}].parts", limit=MAX_PARTS
            )
        parts += len(message.parts)
    if parts > MAX_PARTS:
        raise InvalidRequestError(
            f"the messages of a chat have at most {MAX_PARTS} parts together, got {parts}; join text parts",
            field="start.chat.messages",
            limit=MAX_PARTS,
        )
    media = sum(part.WhichOneof("part") in ("image", "audio") for message in chat.messages for part in message.parts)
    if media > limits.max_media_per_request:
        raise RequestTooLargeError(
            f"the request has {media} media, at most {limits.max_media_per_request} (limits.maxMediaPerRequest)",
            field="start.chat",
            limit=limits.max_media_per_request,
        )


def _check_chars(count: int, limits: Limits, field: str) -> None:
    if count > limits.max_prompt_chars:
        raise RequestTooLargeError(
            f"the text has {count} characters, at most {limits.max_prompt_chars} (limits.maxPromptChars)",
            field=field,
            limit=f"{limits.max_prompt_chars} characters",
        )
