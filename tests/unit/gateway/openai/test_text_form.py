"""How tools and response_format of an OpenAI request become arguments of the gRPC client."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from omni_gateway.entries.connections import EntryFacts
from omni_gateway.errors import GatewayError
from omni_gateway.openai.chat_messages import UserMessage
from omni_gateway.openai.chat_prompt import add_form, add_tools, answer_sampling
from omni_gateway.openai.chat_request import ChatRequest, find_unsupported_in_chat
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


class Text(str):
    """A text that must not be read character by character."""

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError


def test_a_long_text_is_not_searched_for_parts() -> None:
    """Reading a text of 48 MiB one character at a time would block the event loop, and so /health, for 8 s."""
    message = UserMessage.model_construct(role="user", content=Text("hi"))
    assert list(find_unsupported_in_chat(request().model_copy(update={"messages": [message]}))) == []


def test_without_strict_any_json_will_do() -> None:
    arguments: GenerateArguments = {}
    function = {key: value for key, value in WEATHER.items() if key != "strict"}
    add_tools(arguments, request(tools=[{"type": "function", "function": function}], tool_choice="required"), facts())
    assert arguments == {"tools": [Tool("weather", "Of a city.", SCHEMA)], "tool_choice": "required"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"json": SCHEMA}, StructuredOutput(json_schema=SCHEMA)),
        ({"json": '{"type": "object"}'}, StructuredOutput(json_schema='{"type": "object"}')),
        ({"json": {}, "regex": None, "json_object": False}, StructuredOutput(json_schema={})),
        ({"regex": ""}, StructuredOutput(regex="")),
        ({"choice": []}, StructuredOutput(choice=[])),
        ({"json_object": True}, StructuredOutput(json_object=True)),
        ({"regex": "a+"}, StructuredOutput(regex="a+")),
        ({"choice": ["yes", "no"]}, StructuredOutput(choice=["yes", "no"])),
        ({"grammar": "root ::= 'a'"}, StructuredOutput(grammar="root ::= 'a'")),
    ],
)
def test_vllms_structured_outputs_are_the_form_of_the_text(given: dict[str, Any], expected: StructuredOutput) -> None:
    arguments: GenerateArguments = {}
    add_form(arguments, request(structured_outputs=given), facts())
    assert arguments == {"structured_output": expected}


def test_vllms_sampling_parameters_reach_the_entry_stage() -> None:
    assert answer_sampling(request(min_tokens=2, stop_token_ids=[7, 9])) == {"min_tokens": 2, "stop_token_ids": [7, 9]}


@pytest.mark.parametrize("schema", [SCHEMA, {}], ids=["an object", "any value"])
def test_a_schema_is_the_form_of_the_text(schema: dict[str, Any]) -> None:
    arguments: GenerateArguments = {}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    add_form(arguments, request(response_format=wanted), facts())
    assert arguments == {"structured_output": StructuredOutput(json_schema=schema)}


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
        ({"structured_outputs": {"regex": "a"}}, False, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, True, "structured_outputs"),
        ({"structured_outputs": {}}, True, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            True,
            "structured_outputs",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            True,
            "response_format.json_schema.schema",
        ),
    ],
)
def test_an_unsupported_form_names_its_field(fields: dict[str, Any], able: bool, param: str) -> None:
    with pytest.raises(GatewayError) as refused:
        translate(request(**fields), facts(able=able))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": WEATHER}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
def test_a_form_for_a_stage_below_the_entry_names_both(fields: dict[str, Any], param: str) -> None:
    entry = dataclasses.replace(facts(able=False), stage="asr", stages=("asr", "llm"), answering="llm")
    with pytest.raises(GatewayError, match=f"'asr' does not pass {param} on to 'llm', which answers") as refused:
        translate(request(**fields), entry)
    assert refused.value.param == param
