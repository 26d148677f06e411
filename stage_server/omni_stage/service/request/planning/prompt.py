"""Validates the prompt of a request, then builds the component's UserPrompt. Pure.

Errors name the path of the wrong field and the limit, never the content of a field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omni_proto.runtime.limits import MAX_CHAT_PARTS
from omni_proto.stage.v1 import prompt_pb2, stage_service_pb2
from omni_proto.stage_config import Limits
from omni_stage.errors import InvalidRequestError, PromptTooLongError, RequestTooLargeError
from omni_stage.exchange import CalledTool, GivenReply, StructuredText, Tools
from omni_stage.models.component import ChatMessage, MediaPart, TextPart, UserPrompt
from omni_stage.service.media.planning import check_media, plan_medium
from omni_stage.service.media.slots import MediaRules, MediaSlot
from omni_stage.service.request.planning.reply_form import (
    read_called_tools,
    read_reply,
    read_structured,
    read_template_arguments,
    read_tools,
)

ROLES = ("system", "user", "assistant", "tool")
_TOKEN_BYTES = 64
"""Bytes of one token id: the Python integer, and its places in the lists of stage and engine."""
_TEXT_COPIES = 4
"""Copies of a prompt's text: as received, as rendered by the chat template, and as the tokenizer reads it."""
_LIGHT_PARTS = 64
_MESSAGE_OVERHEAD_TOKENS = 64
"""Upper bound of the tokens that a chat template adds to a message."""
_TEMPLATE_OVERHEAD_TOKENS = 512
"""Upper bound of the tokens of a default system prompt."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """A user's prompt before its media have arrived."""

    text: str | None
    chat: prompt_pb2.ChatPrompt | None
    token_ids: tuple[int, ...] | None
    media: tuple[MediaSlot, ...]
    max_prompt_tokens: int
    """Upper bound of the prompt's number of tokens, for any tokenizer: a token has at least one byte."""
    embeds: bool = False
    """Whether embeddings follow instead of text, chat or token ids."""
    called_tools: tuple[tuple[CalledTool, ...], ...] = ()
    """For each message of the chat, the tools that it called."""
    tools: Tools | None = None
    written: bool = False
    """See UserPrompt."""
    reply: GivenReply | None = None
    structured: StructuredText | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    chars: int = 0
    """Characters of text that every tokenizer and chat template turns into tokens of the prompt."""
    text_bytes: int = 0
    """Bytes of the text as received, in UTF-8."""

    @property
    def held_text_bytes(self) -> int:
        """Bytes that the stage holds for the prompt's text and token ids."""
        if self.embeds:
            return 0
        # If tools or media make max_prompt_tokens the engine's longest sequence, the text is still shorter.
        most = len(self.token_ids) if self.token_ids is not None else 2 * self.text_bytes + _TEMPLATE_OVERHEAD_TOKENS
        return _TEXT_COPIES * self.text_bytes + _TOKEN_BYTES * min(most, self.max_prompt_tokens)

    @property
    def announced(self) -> dict[int, int]:
        """Total bytes of media that follow as chunks, by media id."""
        return {slot.media_id: slot.size for slot in self.media if slot.media_id is not None}

    @property
    def media_bytes(self) -> int:
        """Bytes that the stage holds for all media: encoded, decoded and as the engine's input.

        vLLM's processor pads every audio clip of a request to the longest one, so each takes as much input as the
        longest.
        """
        audios = [slot.audio_input_bytes for slot in self.media if slot.audio_input_bytes]
        padding = len(audios) * max(audios, default=0) - sum(audios)
        return sum(slot.held_bytes for slot in self.media) + padding


def is_light(start: stage_service_pb2.Start) -> bool:
    """Returns whether planning takes much less than a millisecond: there are no media headers and no JSON to parse, and
    only few parts."""
    messages = (*start.chat.messages, *start.conversation)
    if (
        start.chat.tools
        or start.tools
        or start.HasField("structured_output")
        or any(message.tool_calls for message in messages)
    ):
        return False
    if start.chat.template_arguments:
        return False
    if len(messages) > _LIGHT_PARTS or sum(len(message.parts) for message in messages) > _LIGHT_PARTS:
        return False
    return all(part.WhichOneof("part") == "text" for message in messages for part in message.parts)


def is_written(start: stage_service_pb2.Start) -> bool:
    """Returns whether the last message of a chat shall be answered and holds no media: nothing of it can be heard."""
    last = [] if start.HasField("reply") else start.chat.messages[-1:]
    return bool(last) and all(part.WhichOneof("part") == "text" for part in last[0].parts)


def check_earlier(start: stage_service_pb2.Start) -> None:
    """Refuse media before the last message: only that one is heard. Raises InvalidRequestError."""
    for number, message in enumerate(start.chat.messages[:-1]):
        for index, part in enumerate(message.parts):
            if (kind := part.WhichOneof("part")) not in ("text", None):
                raise InvalidRequestError(
                    f"only the last message may hold {kind} here; send what was heard in earlier ones (the transcript) "
                    "as text",
                    field=f"start.chat.messages[{number}].parts[{index}].{kind}",
                )


def plan_prompt(
    start: stage_service_pb2.Start, limits: Limits, max_model_len: int, media: MediaRules | None = None
) -> PromptPlan:
    """Validate the prompt of an entry stage. `media` is None if the model takes only text.

    Raises InvalidRequestError, InvalidMediaError, PromptTooLongError, RequestTooLargeError.
    """
    plan = _plan_input(start, limits, max_model_len, media)
    reply = read_reply(start, limits, max_model_len)
    if reply is None:
        return replace(plan, structured=read_structured(start))
    return replace(plan, reply=reply)


def plan_context(start: stage_service_pb2.Start, limits: Limits, max_model_len: int) -> PromptPlan | None:
    """Validate what the client says to a stage that is not the entry: conversation, tools and a reply; None if nothing.

    Raises as plan_prompt does. The fields that errors name are the client's: start.chat.
    """
    reply = read_reply(start, limits, max_model_len)
    if not start.conversation and not start.tools:
        return None if reply is None else PromptPlan(None, None, None, (), 0, reply=reply)
    chat = prompt_pb2.ChatPrompt(messages=start.conversation, tools=start.tools)
    if start.HasField("tool_choice"):
        chat.tool_choice.CopyFrom(start.tool_choice)
    if not start.conversation:  # what is on the edge is the whole conversation
        size = sum(tool.ByteSize() for tool in chat.tools)
        return PromptPlan(None, chat, None, (), max_model_len, tools=read_tools(chat), text_bytes=size)
    return replace(_plan_chat(chat, limits, max_model_len, None), reply=reply, written=start.written)


def _plan_input(
    start: stage_service_pb2.Start, limits: Limits, max_model_len: int, media: MediaRules | None
) -> PromptPlan:
    kind = start.WhichOneof("input")
    if kind == "text":
        _check_chars(len(start.text), limits, "start.text")
        if not start.text:
            raise InvalidRequestError("the text is empty", field="start.text")
        size = len(start.text.encode())
        tokens = min(size + 8, max_model_len)
        return PromptPlan(start.text, None, None, (), tokens, chars=len(start.text), text_bytes=size)
    if kind == "token_ids":
        return _plan_tokens(start.token_ids.ids, max_model_len)
    if kind == "prompt_embeds":
        return PromptPlan(None, None, None, (), min(start.prompt_embeds.max_rows, max_model_len), embeds=True)
    if kind == "chat":
        return _plan_chat(start.chat, limits, max_model_len, media)
    raise InvalidRequestError(
        "the entry stage takes text, chat, token_ids or prompt_embeds as input", field="start.input"
    )


def build_prompt(plan: PromptPlan, decoded: Sequence[MediaPart] = ()) -> UserPrompt:
    """Returns the prompt. `decoded` holds the plan's media, in the same order."""
    if plan.chat is None:
        return UserPrompt(text=plan.text, token_ids=plan.token_ids, reply=plan.reply, structured=plan.structured)
    media = iter(decoded)
    messages = [
        ChatMessage(
            message.role,
            [TextPart(part.text) if part.WhichOneof("part") == "text" else next(media) for part in message.parts],
            called,
            message.tool_call_id,
            message.name,
        )
        for message, called in zip(plan.chat.messages, plan.called_tools, strict=True)
    ]
    return UserPrompt(
        messages=messages,
        written=plan.written,
        reply=plan.reply,
        tools=plan.tools,
        structured=plan.structured,
        template_arguments=plan.template_arguments,
    )


def _plan_tokens(ids: Sequence[int], max_model_len: int) -> PromptPlan:
    if not ids:
        raise InvalidRequestError("token_ids is empty", field="start.token_ids.ids")
    if len(ids) >= max_model_len:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens; the engine's longest sequence, output included, is {max_model_len}",
            field="start.token_ids.ids",
            limit=f"{max_model_len} tokens",
            actual=f"{len(ids)} tokens",
        )
    if max(ids) >= 1 << 31:
        raise InvalidRequestError("a token id does not fit 31 bits", field="start.token_ids.ids", limit=(1 << 31) - 1)
    return PromptPlan(None, None, tuple(ids), (), len(ids))


def _plan_chat(chat: prompt_pb2.ChatPrompt, limits: Limits, max_model_len: int, rules: MediaRules | None) -> PromptPlan:
    _check_size(chat, limits)
    # Check the length before any arguments are parsed as JSON, which takes a second for each MiB.
    called_chars = sum(len(message.tool_call_id) + len(message.name) for message in chat.messages) + sum(
        len(call.id) + len(call.name) + len(call.arguments) for message in chat.messages for call in message.tool_calls
    )
    _check_chars(called_chars, limits, "start.chat")
    tools = read_tools(chat)
    template_arguments = read_template_arguments(chat)
    if rules is not None and chat.use_audio_in_video:
        rules = replace(rules, hear_videos=True)
    media: list[MediaSlot] = []
    called: list[tuple[CalledTool, ...]] = []
    chars, tokens = called_chars, 0
    for number, message in enumerate(chat.messages):
        path = f"start.chat.messages[{number}]"
        if message.role not in ROLES:
            raise InvalidRequestError(
                f"role must be one of {', '.join(ROLES)}", field=f"{path}.role", limit=", ".join(ROLES)
            )
        _check_tool_fields(message, path)
        called.append(read_called_tools(message.tool_calls, f"{path}.tool_calls"))
        tokens += _MESSAGE_OVERHEAD_TOKENS + len(message.name.encode())
        for index, part in enumerate(message.parts):
            kind = part.WhichOneof("part")
            if kind == "text":
                chars += len(part.text)
                # One more for a line break before the next part.
                tokens += len(part.text.encode()) + 1
            elif kind == "image" or kind == "audio" or kind == "video":
                field = f"{path}.parts[{index}].{kind}"
                if rules is None:
                    raise InvalidRequestError("this model reads text only; leave media out", field=field)
                media.append(plan_medium(getattr(part, kind), field, kind, rules))
            else:
                raise InvalidRequestError(
                    "a part holds text, an image, audio or a video", field=f"{path}.parts[{index}]"
                )
    _check_chars(chars, limits, "start.chat")
    if rules is not None:
        check_media(media, rules)
    # Each chat template formats tools in its own way, so the prompt may be longer than the text that was sent.
    is_open = media or tools or any(called) or template_arguments
    upper = max_model_len if is_open else min(tokens + _TEMPLATE_OVERHEAD_TOKENS, max_model_len)
    return PromptPlan(
        None,
        chat,
        None,
        tuple(media),
        upper,
        called_tools=tuple(called),
        tools=tools,
        template_arguments=template_arguments,
        chars=chars - called_chars,
        text_bytes=tokens + called_chars + sum(tool.ByteSize() for tool in chat.tools),
    )


def _check_tool_fields(message: prompt_pb2.ChatMessage, path: str) -> None:
    """Check the fields that only one role may set. Raises InvalidRequestError."""
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError("only an assistant's message has tool_calls", field=f"{path}.tool_calls")
    if message.tool_call_id and message.role != "tool":
        raise InvalidRequestError('only a message of the role "tool" has a tool_call_id', field=f"{path}.tool_call_id")
    if message.role == "tool" and any(part.WhichOneof("part") != "text" for part in message.parts):
        raise InvalidRequestError('a message of the role "tool" holds text', field=f"{path}.parts")


def _check_size(chat: prompt_pb2.ChatPrompt, limits: Limits) -> None:
    """Check the number of messages, parts and media before any is read.

    Raises InvalidRequestError, RequestTooLargeError.
    """
    if not 1 <= len(chat.messages) <= MAX_CHAT_PARTS:
        raise InvalidRequestError(
            f"a chat has 1 to {MAX_CHAT_PARTS} messages, got {len(chat.messages)}",
            field="start.chat.messages",
            limit=MAX_CHAT_PARTS,
        )
    parts = 0
    for number, message in enumerate(chat.messages):
        if not message.parts and not message.tool_calls:
            raise InvalidRequestError(
                "a message has at least one part or tool call",
                field=f"start.chat.messages[{number}].parts",
                limit=MAX_CHAT_PARTS,
            )
        parts += len(message.parts) + len(message.tool_calls)
    if parts > MAX_CHAT_PARTS:
        raise InvalidRequestError(
            f"the messages of a chat have at most {MAX_CHAT_PARTS} parts and tool calls together, got {parts}; join "
            "text parts",
            field="start.chat.messages",
            limit=MAX_CHAT_PARTS,
        )
    media = [
        f"start.chat.messages[{number}].parts[{index}].{kind}"
        for number, message in enumerate(chat.messages)
        for index, part in enumerate(message.parts)
        if (kind := part.WhichOneof("part")) in ("image", "audio", "video")
    ]
    if len(media) > limits.max_media_per_request:
        raise RequestTooLargeError(
            f"the request has {len(media)} media, at most {limits.max_media_per_request} (limits.maxMediaPerRequest)",
            field=media[limits.max_media_per_request],
            limit=limits.max_media_per_request,
        )


def _check_chars(count: int, limits: Limits, field: str) -> None:
    if count > limits.max_prompt_chars:
        raise RequestTooLargeError(
            f"the text has {count} characters, at most {limits.max_prompt_chars} (limits.maxPromptChars)",
            field=field,
            limit=f"{limits.max_prompt_chars} characters",
        )
