"""Errors name the field that is wrong, also inside lists of messages and parts, and say what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app

PART = "messages[0].content[0]"
URL = {"url": "data:image/png;base64,AAAA"}
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
        ({"type": "image_url", "image_url": {**URL, "detail": "high"}}, f"{PART}.image_url.detail", "must be 'auto'"),
        ({"type": "image_url", "image_url": "data:"}, f"{PART}.image_url", "should be a valid dictionary"),
        ({"type": "text", "text": "a", "cache_control": {}}, f"{PART}.cache_control", "Unknown parameter"),
        ({"type": "text", "text": 1}, f"{PART}.text", "should be a valid string"),
        ({"type": "text"}, f"{PART}.text", "Missing required parameter"),
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "ogg"}},
            f"{PART}.input_audio.format",
            "should be 'wav', 'mp3', 'flac' or 'opus'",
        ),
        ("words", PART, "should be a valid dictionary"),
    ],
)
def test_a_wrong_part_of_a_message_is_named(part: Any, param: str, says: str) -> None:
    """Each of these answered "messages[0].content: Input should be a valid string"."""
    error = ask([{"role": "user", "content": [part]}])
    assert error["param"] == param
    assert says in error["message"]
    assert param.removeprefix(PART).removeprefix(".").rsplit(".", 1)[-1] in error["message"]


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role", "invalid_value"),
        ({"content": "x"}, "messages[0].role", "missing_required_parameter"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_type"),
        ({"role": "user", "content": "x", "user": "x"}, "messages[0].user", "unknown_parameter"),
        ({"role": "system", "content": [{"type": "text", "text": 5}]}, f"{PART}.text", "invalid_type"),
        ({"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]}, f"{PART}.type", "invalid_value"),
    ],
)
def test_a_wrong_message_is_named(message: dict[str, Any], param: str, code: str) -> None:
    error = ask([message])
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [1]}, "stop[0]"),
        ({"stop": 1, "stop_token_ids": ["x"]}, "stop"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [{"type": "function", "function": {"nome": "x"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"audio": {"voice": {"id": 5}, "format": "wav"}}, "audio.voice.id"),
    ],
)
def test_a_wrong_field_of_several_kinds_is_named(fields: dict[str, Any], param: str) -> None:
    assert ask([{"role": "user", "content": "x"}], **fields)["param"] == param
