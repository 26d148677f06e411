"""Errors name the field that is wrong, also inside lists of messages and parts, and say what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings, UnsupportedFields
from omni_proto.runtime.limits import MAX_CHAT_PARTS
from support.tables import each_row

PART = "messages[0].content[0]"
URL = {"url": "data:image/png;base64,AAAA"}
JSON = "response_format.json_schema.schema"
ALLOWED = "'text', 'image_url', 'input_audio', 'audio_url', 'video_url'"


def ask(messages: list[Any], **fields: Any) -> dict[str, Any]:
    """Returns the error that the gateway answers with."""
    client = TestClient(create_app(StaticPipelines(())))
    answer = client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **fields})
    assert answer.status_code == 400
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize(
    ("part", "param", "says"),
    [
        ({"type": "image_embeds", "image_embeds": "AA"}, f"{PART}.type", f"is 'image_embeds'; use {ALLOWED}."),
        ({"type": "file", "file": {"file_id": "x"}}, f"{PART}.type", f"is 'file'; use {ALLOWED}."),
        ({"image_url": URL}, f"{PART}.type", "Missing required parameter"),
        ({"type": "image_url", "image_url": URL, "uuid": "x"}, f"{PART}.uuid", "Unknown parameter"),
        ({"type": "image_url", "image_url": {**URL, "uuid": "x"}}, f"{PART}.image_url.uuid", "Unknown parameter"),
        ({"type": "image_url", "image_url": {**URL, "detail": "big"}}, f"{PART}.image_url.detail", "'auto', 'low'"),
        ({"type": "image_url", "image_url": ["data:"]}, f"{PART}.image_url", "should be a URL or an object with url"),
        ({"type": "image_url", "image_url": {"uri": "x"}}, f"{PART}.image_url.url", "Missing required parameter"),
        ({"type": "text", "text": "a", "weight": {}}, f"{PART}.weight", "Unknown parameter"),
        ({"type": "text", "text": 1}, f"{PART}.text", "should be a valid string"),
        ({"type": "text"}, f"{PART}.text", "Missing required parameter"),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": 7}},
            f"{PART}.input_audio.format",
            "should be a valid string",
        ),
        (5, PART, "should be a text or an object with type"),
    ],
)
def test_the_error_names_a_wrong_message_part(part: Any, param: str, says: str) -> None:
    """pydantic's first problem with each of these is only that messages[0].content should be a text."""
    error = ask([{"role": "user", "content": [part]}])
    assert error["param"] == param
    assert says in error["message"]
    assert param.removeprefix(PART).removeprefix(".").rsplit(".", 1)[-1] in error["message"]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role", "invalid_value"),
        ({"content": "x"}, "messages[0].role", "missing_required_parameter"),
        ({"role": None, "content": "x"}, "messages[0].role", "missing_required_parameter"),
        ({"role": "None", "content": "x"}, "messages[0].role", "invalid_value"),
        ({"role": "user", "content": [{"type": None, "text": "x"}]}, f"{PART}.type", "missing_required_parameter"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": "x", "user": "x"}, "messages[0].user", "unknown_parameter"),
        ({"role": "system", "content": [{"type": "text", "text": 5}]}, f"{PART}.text", "invalid_type"),
        ({"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]}, f"{PART}.type", "invalid_value"),
    ],
)
def test_the_error_names_a_wrong_message(message: dict[str, Any], param: str, code: str) -> None:
    error = ask([message])
    assert (error["param"], error["code"]) == (param, code)


MANY = [str(number) for number in range(17)]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"stop": MANY}, "stop", "at most 16 items"),
        ({"stop": {}}, "stop", "should be a text or a list of texts"),
        ({"tool_choice": "any"}, "tool_choice", "should be 'none', 'auto' or 'required'"),
        ({"tool_choice": ["auto"]}, "tool_choice", "an object that names a function"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.type", "should be 'function'"),
        ({"response_format": "json_object"}, "response_format", "be an object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}}, JSON, "be an object"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "should be JSON text or an object"),
        ({"audio": {"voice": 5, "format": "wav"}}, "audio.voice", "should be a name or an object with id"),
        ({"audio": {"voice": {}, "format": "wav"}}, "audio.voice.id", "Missing required parameter"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content", "a text or a list of parts"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "Missing required parameter"),
        ({"messages": [{"role": "tool", "content": [{"type": "text"}]}]}, f"{PART}.text", "Missing"),
        ({"messages": ["Hi"]}, "messages[0]", "be an object"),
        ({"messages": "Hi"}, "messages", "valid list"),
        ({"max_tokens": 1e30}, "max_tokens", "at most 64 bits"),
        ({"logprobs": True}, "logprobs", "leave it out or send false"),
    ],
)
def test_the_error_is_about_the_branch_of_the_value_s_type(fields: dict[str, Any], param: str, says: str) -> None:
    """pydantic's first problem with a union is that of its first branch: that 17 stop strings are no text."""
    error = ask(**{"messages": [{"role": "user", "content": "x"}], **fields})
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 1, "stop_token_ids": ["x"]}, "stop"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [{"type": "function", "function": {"nome": "x"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": None}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"audio": {"voice": {"id": 5}, "format": "wav"}}, "audio.voice.id"),
    ],
)
def test_the_error_names_a_wrong_field_of_a_union(fields: dict[str, Any], param: str) -> None:
    assert ask([{"role": "user", "content": "x"}], **fields)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "x", "mood": 1}], "temperature": 9}, "temperature"),
        ({"messages": [{"role": "user", "mood": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x"}], "mood": 1, "seed": "x"}, "seed"),
    ],
)
def test_with_ignore_no_error_is_about_an_unknown_field(fields: dict[str, Any], param: str) -> None:
    """Otherwise the client is told to leave out a field that would be ignored, and not what is wrong."""
    settings = GatewaySettings(unsupported_fields=UnsupportedFields.IGNORE)
    client = TestClient(create_app(StaticPipelines(()), settings))
    answer = client.post("/v1/chat/completions", json={"model": "m", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    answer = client.post("/v1/chat/completions", json=[])
    assert answer.json()["error"]["code"] == "invalid_json"


@each_row(
    "name",
    [
        *("documents", "partial", "guided_json", "guided_regex", "safety_settings"),
        *("system", "system_instruction", "instructions", "prompt", "input", "contents", "chat_template"),
        *("format", "grammar", "json_schema", "regex", "ebnf", "structural_tag", "truncate_prompt_tokens"),
    ],
)
def test_a_lenient_gateway_also_refuses_fields_that_a_request_needs(name: str) -> None:
    """Names of other servers' APIs: without them the model reads another conversation, or writes another form."""
    client = TestClient(create_app(StaticPipelines(()), GatewaySettings(unsupported_fields=UnsupportedFields.IGNORE)))
    body = {"model": "m", "messages": [{"role": "user", "content": "x", "index": 1}], "best_of": 1, name: "x"}
    error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert (error["param"], error["code"]) == (name, "unknown_parameter")


def test_more_messages_than_a_stage_takes_are_refused_by_the_gateway() -> None:
    error = ask([{"role": "user", "content": "a"}] * (MAX_CHAT_PARTS + 1))
    assert error["param"] == "messages"
    assert f"at most {MAX_CHAT_PARTS}" in error["message"]
