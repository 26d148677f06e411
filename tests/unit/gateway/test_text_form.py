"""How tools and response_format of an OpenAI request become arguments of the gRPC client."""

from __future__ import annotations

from typing import Any

import pytest

from omni_gateway.entry_facts import EntryFacts
from omni_gateway.errors import GatewayError
from omni_gateway.openai.chat_request import ChatRequest
from omni_gateway.openai.chat_unsupported import find_unsupported
from omni_gateway.openai.text_form import add_form, add_tools
from omni_proto.client import CallTool, GenerateArguments, StructuredOutput, Tool

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA, "strict": True}
NAMED = {"type": "function", "function": {"name": "weather"}}


def facts(*, able: bool = True) -> EntryFacts:
    return EntryFacts(
        stage="llm",
        stages=("llm",),
        modalities=("text",),
        voices=(),
        max_model_len=64,
        speaks_given_text=False,
        structures_text=able,
        calls_tools=able,
    )


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields})


def translate(body: ChatRequest, entry: EntryFacts) -> GenerateArguments:
    arguments: GenerateArguments = {}
    add_tools(arguments, body, entry)
    add_form(arguments, body, entry)
    return arguments


def test_a_tool_keeps_its_schema_and_strict() -> None:
    arguments: GenerateArguments = {}
    add_tools(arguments, request(tools=[{"type": "function", "function": WEATHER}], tool_choice=NAMED), facts())
    assert arguments == {
        "tools": [Tool("weather", "Of a city.", SCHEMA, strict=True)],
        "tool_choice": CallTool("weather"),
    }


@pytest.mark.parametrize(("choice", "refused"), [(NAMED, False), ("required", True), (None, True)])
def test_parallel_tool_calls_may_be_false_if_the_tool_is_named(choice: Any, refused: bool) -> None:
    """There is then exactly one call. LangChain's with_structured_output sends both."""
    tools = [{"type": "function", "function": WEATHER}]
    found = find_unsupported(request(tools=tools, tool_choice=choice, parallel_tool_calls=False))
    assert (found is not None) is refused


def test_without_strict_any_json_will_do() -> None:
    arguments: GenerateArguments = {}
    function = {key: value for key, value in WEATHER.items() if key != "strict"}
    add_tools(arguments, request(tools=[{"type": "function", "function": function}], tool_choice="required"), facts())
    assert arguments == {"tools": [Tool("weather", "Of a city.", SCHEMA)], "tool_choice": "required"}


def test_a_schema_is_the_form_of_the_text() -> None:
    arguments: GenerateArguments = {}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    add_form(arguments, request(response_format=wanted), facts())
    assert arguments == {"structured_output": StructuredOutput(json_schema=SCHEMA)}


@pytest.mark.parametrize(
    ("fields", "able", "param"),
    [
        ({"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}, False, "tools"),
        ({"tool_choice": "required"}, True, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": WEATHER}],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            True,
            "tool_choice",
        ),
        ({"response_format": {"type": "json_object"}}, False, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            True,
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_done_names_its_field(fields: dict[str, Any], able: bool, param: str) -> None:
    with pytest.raises(GatewayError) as refused:
        translate(request(**fields), facts(able=able))
    assert refused.value.param == param
