"""Reads the form of the text and the tools that Start requests. Pure.

Before the engine gets a form, it is also tried out (omni_stage/forms/trial_pool.py), which shows whether it is valid
and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from omni_proto.stage.v1 import prompt_pb2, sampling_pb2, stage_service_pb2
from omni_proto.stage_config import StructuredOutput
from omni_stage.errors import InvalidRequestError
from omni_stage.exchange.reply_form import StructuredText, Tool, ToolMode, Tools
from omni_stage.forms.regex import UnsupportedRegexError, check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.service.request.planning.reply_form import NAME_RULE, TOOL_NAME, check_bytes, read_json_object

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
    form, choice = start.structured_output.WhichOneof("form"), start.chat.tool_choice
    must_call = choice.WhichOneof("choice") == "function" or choice.mode == prompt_pb2.TOOL_MODE_REQUIRED
    asked = {
        f"start.structured_output.{form}": start.HasField("structured_output"),
        "start.chat.tool_choice": must_call,
        "start.chat.tools": any(tool.strict for tool in start.chat.tools),
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


def _read_tool(tool: prompt_pb2.Tool, field: str) -> Tool:
    if not TOOL_NAME.fullmatch(tool.name):
        raise InvalidRequestError(NAME_RULE, field=f"{field}.name")
    parameters: Mapping[str, Any] = {"type": "object", "properties": {}}
    if tool.parameters:
        parameters = read_json_object(tool.parameters, f"{field}.parameters", "a JSON Schema")
        if tool.strict:
            _check_schema(parameters, f"{field}.parameters")
    return Tool(tool.name, tool.description, parameters, tool.strict)


def _check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Raises InvalidRequestError if a keyword of the schema would not be enforced."""
    try:
        admit_schema(schema)
    except UnsupportedSchemaError as error:
        raise InvalidRequestError(str(error), field=field) from error
