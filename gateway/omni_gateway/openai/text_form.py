"""Translates tools and the form of the text from OpenAI's fields to the fields of the gRPC client. Pure functions."""

from __future__ import annotations

from omni_gateway.entries.facts import EntryFacts
from omni_gateway.errors import InvalidRequestError, UnsupportedError
from omni_gateway.openai.chat_request import ChatRequest, JsonObjectFormat, NamedTool, StructuredOutputs, TextFormat
from omni_proto.client import ArgumentError, CallTool, GenerateArguments, StructuredOutput, Tool


def add_tools(arguments: GenerateArguments, body: ChatRequest, facts: EntryFacts) -> None:
    """Put tools and tool_choice into the arguments. Raises InvalidRequestError."""
    if not body.tools:
        if body.tool_choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice needs tools.", param="tool_choice")
        return
    if not facts.calls_tools:
        raise UnsupportedError(
            f"The model {body.model[:128]!r} calls no tools: its entry stage names no engineArgs.toolCallParser.",
            param="tools",
        )
    functions = [tool.function for tool in body.tools]
    arguments["tools"] = [
        Tool(one.name, one.description or "", one.parameters or "", strict=bool(one.strict)) for one in functions
    ]
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in [one.name for one in functions]:
            raise InvalidRequestError(f"tool_choice names {name[:64]!r}, which is not in tools.", param="tool_choice")
        arguments["tool_choice"] = CallTool(name)
    elif body.tool_choice is not None:
        arguments["tool_choice"] = body.tool_choice


def add_form(arguments: GenerateArguments, body: ChatRequest, facts: EntryFacts) -> None:
    """Put the form of the text into the arguments. Raises InvalidRequestError."""
    wanted = body.response_format
    if isinstance(wanted, TextFormat):
        wanted = None
    if wanted is None and body.structured_outputs is None:
        return
    param = "response_format" if body.structured_outputs is None else "structured_outputs"
    if not facts.structures_text:
        raise UnsupportedError(
            f"The model {body.model[:128]!r} returns any text: {param} is not supported.", param=param
        )
    if body.structured_outputs is not None:
        if wanted is not None:
            raise InvalidRequestError("response_format and structured_outputs exclude each other.", param=param)
        arguments["structured_output"] = _read_form(body.structured_outputs)
    elif isinstance(wanted, JsonObjectFormat):
        arguments["structured_output"] = StructuredOutput(json_object=True)
    elif wanted is None or not wanted.json_schema.json_schema:
        raise InvalidRequestError("response_format needs a schema.", param="response_format.json_schema.schema")
    else:
        arguments["structured_output"] = StructuredOutput(json_schema=wanted.json_schema.json_schema)


def _read_form(wanted: StructuredOutputs) -> StructuredOutput:
    given = {name: value for name in StructuredOutputs.model_fields if (value := getattr(wanted, name))}
    try:
        return StructuredOutput(**given)
    except ArgumentError as error:
        raise InvalidRequestError(
            "structured_outputs needs exactly one of json, json_object, regex, choice and grammar.",
            param="structured_outputs",
        ) from error
