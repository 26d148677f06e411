"""Validates the form that Start requests for the entry stage's reply. Pure.

Errors name the path of the wrong field and the limit, never the content of a field. Before the engine gets a form of
the text, it is also tried out (omni_stage/forms/trial_pool.py), which shows whether it is valid and what it costs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2, stage_service_pb2
from omni_proto.stage_config import Limits, StageConfig, StructuredOutput
from omni_proto.tensors import TEXT
from omni_stage.errors import InvalidRequestError, PromptTooLongError, RequestTooLargeError
from omni_stage.exchange import CalledTool, GivenReply, OfferedTool, StructuredText, ToolMode, Tools
from omni_stage.forms.regex import UnsupportedRegexError, check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema

MAX_FORM_BYTES: Final = 64 << 10
"""Maximum bytes of the requested form of the text, which vLLM compiles before the request runs. The same bound applies
to all tools together, and to the characters of template_arguments."""
MAX_JSON_DEPTH: Final = 64
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NAME_RULE: Final = 'a tool\'s name has 1 to 64 letters, digits, "_", "-" and "."'


def check_reply_form(
    start: stage_service_pb2.Start, config: StageConfig, facts: ComponentFacts, *, speaks: bool
) -> None:
    """Refuse what the stage cannot do, and fields that exclude each other. Raises InvalidRequestError.

    `speaks`: whether the request calls downstream stages.
    """
    tools = bool(start.chat.tools or start.tools) or start.chat.HasField("tool_choice")
    passes_on = config.passes_on(facts.transcribes)
    calls_tools = facts.takes_tools and bool(config.engine_args.tool_call_parser)
    asked = {
        "start.reply": start.HasField("reply"),
        "start.structured_output": start.HasField("structured_output"),
        "start.chat.tools": tools,
        "start.chat.template_arguments": bool(start.chat.template_arguments),
    }
    possible = {
        "start.reply": facts.takes_reply or passes_on,
        "start.structured_output": facts.structures_text,
        "start.chat.tools": bool(config.answering_tool_call_parser) if passes_on else calls_tools,
        "start.chat.template_arguments": facts.takes_tools or facts.transcribes,
    }
    for field, is_asked in asked.items():
        if is_asked and not possible[field]:
            raise InvalidRequestError(_refusal(field, config, facts), field=field)
    if asked["start.reply"]:
        _check_alone(start, config, [field for field, is_asked in asked.items() if is_asked])
    for field in ("start.structured_output", "start.chat.tools"):
        if asked[field] and speaks:
            if field == "start.chat.tools" and (
                passes_on or (config.answering_stage is None and facts.publishes == TEXT)
            ):
                continue  # the text beside the calls is published, and they are not
            if config.answering_stage is not None:
                raise InvalidRequestError(_not_passed_on(field, config), field=field)
            raise InvalidRequestError(
                f"{field.removeprefix('start.')} cannot be combined with speech: the reply would be read out; "
                "request only the modality text",
                field=field,
            )


def read_reply(start: stage_service_pb2.Start, limits: Limits, max_model_len: int) -> GivenReply | None:
    """Returns the given reply, or None.

    Raises InvalidRequestError, PromptTooLongError, RequestTooLargeError.
    """
    if not start.HasField("reply"):
        return None
    kind = start.reply.WhichOneof("reply")
    if kind == "text":
        text = start.reply.text
        if not text:
            raise InvalidRequestError("the reply is empty; give a text, or leave reply out", field="start.reply.text")
        if len(text) > limits.max_prompt_chars:
            raise RequestTooLargeError(
                f"the reply has {len(text)} characters, at most {limits.max_prompt_chars} (limits.maxPromptChars)",
                field="start.reply.text",
                limit=f"{limits.max_prompt_chars} characters",
            )
        return GivenReply(text=text)
    ids, field = start.reply.token_ids.ids, "start.reply.token_ids.ids"
    if not ids:
        raise InvalidRequestError("the reply is empty; give token ids, or leave reply out", field=field)
    if len(ids) >= max_model_len:
        raise PromptTooLongError(
            f"the reply has {len(ids)} tokens; the engine's longest sequence, prompt included, is {max_model_len}",
            field=field,
            limit=f"{max_model_len} tokens",
            actual=f"{len(ids)} tokens",
        )
    if max(ids) >= 1 << 31:
        raise InvalidRequestError("a token id does not fit 31 bits", field=field, limit=(1 << 31) - 1)
    return GivenReply(token_ids=tuple(ids))


def bound_reply(reply: GivenReply, max_model_len: int) -> int:
    """Returns the maximum number of tokens of a reply: each token has at least one byte of its text."""
    length = len(reply.token_ids) if reply.token_ids is not None else len((reply.text or "").encode())
    return max(1, min(length, max_model_len))


def read_template_arguments(chat: prompt_pb2.ChatPrompt) -> Mapping[str, Any]:
    """Returns the arguments for the chat template. Raises InvalidRequestError, RequestTooLargeError."""
    text, path = chat.template_arguments, "start.chat.template_arguments"
    if not text:
        return {}
    check_bytes(len(text.encode()), path)
    return read_json_object(text, path, "template_arguments")


def read_called_tools(calls: Sequence[prompt_pb2.ToolCall], field: str) -> tuple[CalledTool, ...]:
    """Returns the calls of an assistant's message. Their names are as the model wrote them. Raises
    InvalidRequestError."""
    return tuple(
        CalledTool(call.id, call.name, _read_arguments(call.arguments, f"{field}[{number}].arguments"))
        for number, call in enumerate(calls)
    )


def _read_arguments(text: str, field: str) -> Mapping[str, Any]:
    """Returns the arguments of an earlier call. They are empty if the text is not a JSON object, as with vLLM.

    The model wrote this text, perhaps only up to max_tokens. A refusal would end the conversation, because each later
    request repeats the text. Raises InvalidRequestError for arguments that are nested too deep.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return {}
    except RecursionError as error:
        raise _too_deep("arguments", field) from error
    if not isinstance(value, dict):
        return {}
    _check_depth(value, "arguments", field)
    return value if _is_unicode(value) else {}


def read_json_object(text: str, field: str, what: str) -> Mapping[str, Any]:
    """Returns the JSON object in the text. Raises InvalidRequestError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{what} must be JSON text", field=field) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{what} must be a JSON object", field=field)
    _check_depth(value, what, field)
    if not _is_unicode(value):
        raise InvalidRequestError(f"{what} contains half of a surrogate pair; write whole characters", field=field)
    return value


def _refusal(field: str, config: StageConfig, facts: ComponentFacts) -> str:
    name = field.removeprefix("start.")
    if field == "start.chat.tools" and config.passes_on(facts.transcribes):
        return f"stage {config.answering_stage!r} has no parser for tool calls; set its engineArgs.toolCallParser"
    if config.input is not None and field == "start.structured_output":
        return f"{name} is only for the entry stage"
    if config.answering_stage is not None:
        return _not_passed_on(field, config)
    if field == "start.chat.tools" and facts.takes_tools:
        return "this stage has no parser for tool calls; set engineArgs.toolCallParser of the stage"
    return f"component {facts.id} cannot honour {name}; leave it out"


def _not_passed_on(field: str, config: StageConfig) -> str:
    return (
        f"{field.removeprefix('start.')} is for the stage that answers, {config.answering_stage!r}, and the entry "
        f"stage {config.stage!r} does not pass it on; leave it out, or ask a pipeline whose entry stage answers"
    )


def _check_alone(start: stage_service_pb2.Start, config: StageConfig, asked: Sequence[str]) -> None:
    others = [field for field in asked if field != "start.reply"]
    if config.stage in start.sampling:
        others.append(f"start.sampling[{config.stage}]")
    if start.WhichOneof("input") == "prompt_embeds":
        others.append("start.prompt_embeds")
    if others:
        raise InvalidRequestError(
            f"a given reply is not sampled: leave out {', '.join(others)}, or the reply", field=others[0]
        )


def check_bytes(size: int, field: str) -> None:
    if size > MAX_FORM_BYTES:
        raise RequestTooLargeError(
            f"{field.removeprefix('start.')} takes {size} bytes, at most {MAX_FORM_BYTES}; shorten it",
            field=field,
            limit=f"{MAX_FORM_BYTES} bytes",
        )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_unicode(value: Any) -> bool:
    """Returns whether all texts in a value can be encoded: an escape of JSON may stand for half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(value: Any, what: str, field: str) -> None:
    if _depth(value) > MAX_JSON_DEPTH:
        raise _too_deep(what, field)


def _too_deep(what: str, field: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what} may be nested {MAX_JSON_DEPTH} deep at most", field=field, limit=MAX_JSON_DEPTH)


def _depth(value: Any) -> int:
    return max((level for _, level in _walk(value)), default=0)


def _walk(value: Any) -> Iterator[tuple[Any, int]]:
    """Yields each mapping and list in a value, with its depth, from 1. This function is not recursive, because the
    client chooses the depth."""
    waiting = [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        if isinstance(item, dict | list):
            yield item, level
            waiting.extend((child, level + 1) for child in (item.values() if isinstance(item, dict) else item))


MAX_TOOLS: Final = 128
MAX_CHOICES: Final = 1024
_ALL_ONLY: Final = ("regex", "grammar")
"""Forms that only engineArgs.structuredOutput: All allows."""
_MODES: Final = {
    prompt_pb2.TOOL_MODE_UNSPECIFIED: ToolMode.AUTO,
    prompt_pb2.TOOL_MODE_AUTO: ToolMode.AUTO,
    prompt_pb2.TOOL_MODE_NONE: ToolMode.NONE,
    prompt_pb2.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
}


def check_setting(start: stage_service_pb2.Start, setting: StructuredOutput) -> None:
    """Raises InvalidRequestError if engineArgs.structuredOutput does not allow what Start requests of the text."""
    form = start.structured_output.WhichOneof("form")
    choice = start.tool_choice if start.tools else start.chat.tool_choice
    must_call = choice.WhichOneof("choice") == "function" or choice.mode == prompt_pb2.TOOL_MODE_REQUIRED
    asked = {
        f"start.structured_output.{form}": start.HasField("structured_output"),
        "start.chat.tool_choice": must_call,
        "start.chat.tools": any(tool.strict for tool in (*start.chat.tools, *start.tools)),
    }
    for field, is_asked in asked.items():
        allowed = setting is StructuredOutput.ALL or (setting is StructuredOutput.JSON and form not in _ALL_ONLY)
        if is_asked and not allowed:
            what = "a required call or a strict tool" if field.startswith("start.chat") else form
            raise InvalidRequestError(
                f"this stage allows no {what}: engineArgs.structuredOutput is {setting.value}; leave it out, or ask "
                "the operator of the service",
                field=field,
            )


def read_structured(start: stage_service_pb2.Start) -> StructuredText | None:
    """Returns the requested form of the text, or None. Raises InvalidRequestError, RequestTooLargeError."""
    if not start.HasField("structured_output"):
        return None
    message, field = start.structured_output, "start.structured_output"
    kind = message.WhichOneof("form")
    if kind is None:
        raise InvalidRequestError(
            "set one of json_schema, json_object, regex, choice and grammar; or leave structured_output out",
            field=field,
        )
    check_bytes(message.ByteSize(), f"{field}.{kind}")
    if kind == "json_schema":
        _check_schema(
            read_json_object(message.json_schema, f"{field}.json_schema", "a JSON Schema"), f"{field}.json_schema"
        )
        return StructuredText(json_schema=message.json_schema)
    if kind == "choice":
        return StructuredText(choice=_read_choice(message.choice, f"{field}.choice.texts"))
    value = getattr(message, kind)
    if not value:
        raise InvalidRequestError(f"{kind} is empty; leave structured_output out", field=f"{field}.{kind}")
    if kind == "regex":
        try:
            check_regex(message.regex, in_json=False)
        except UnsupportedRegexError as error:
            raise InvalidRequestError(
                f"the regular expression cannot be enforced: {error}", field=f"{field}.regex"
            ) from error
    return StructuredText(**{kind: value})


def read_tools(chat: prompt_pb2.ChatPrompt) -> Tools | None:
    """Returns the tools of a chat, or None. Raises InvalidRequestError, RequestTooLargeError."""
    field = "start.chat.tools"
    if not chat.tools:
        if chat.HasField("tool_choice"):
            raise InvalidRequestError("tool_choice needs tools; leave it out", field="start.chat.tool_choice")
        return None
    if len(chat.tools) > MAX_TOOLS:
        raise InvalidRequestError(
            f"a chat has at most {MAX_TOOLS} tools, got {len(chat.tools)}", field=field, limit=MAX_TOOLS
        )
    check_bytes(sum(tool.ByteSize() for tool in chat.tools), field)
    tools = tuple(_read_tool(tool, f"{field}[{number}]") for number, tool in enumerate(chat.tools))
    names = [tool.name for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidRequestError("two tools have the same name", field=field)
    function = chat.tool_choice.function
    if chat.tool_choice.WhichOneof("choice") == "function":
        if function not in names:
            raise InvalidRequestError("tool_choice names no tool of the request", field="start.chat.tool_choice")
        return Tools(tools, ToolMode.REQUIRED, function)
    mode = _MODES.get(chat.tool_choice.mode)
    if mode is None:
        raise InvalidRequestError("the mode of tool_choice is not known", field="start.chat.tool_choice.mode")
    return Tools(tools, mode)


def _read_choice(choice: sampling_pb2.Choices, field: str) -> tuple[str, ...]:
    if not 1 <= len(choice.texts) <= MAX_CHOICES or not all(choice.texts):
        raise InvalidRequestError(
            f"choice has 1 to {MAX_CHOICES} texts, none of them empty", field=field, limit=MAX_CHOICES
        )
    return tuple(choice.texts)


def _read_tool(tool: prompt_pb2.Tool, field: str) -> OfferedTool:
    if not TOOL_NAME.fullmatch(tool.name):
        raise InvalidRequestError(NAME_RULE, field=f"{field}.name")
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}
    if tool.parameters:
        parameters = read_json_object(tool.parameters, f"{field}.parameters", "a JSON Schema")
        if tool.strict:
            _check_schema(parameters, f"{field}.parameters")
    return OfferedTool(tool.name, tool.description, parameters, tool.strict)


def _check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Raises InvalidRequestError if a keyword of the schema would not be enforced."""
    try:
        admit_schema(schema)
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(str(error), field=field) from error
