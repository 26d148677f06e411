"""An error of a stage names the client's own field, with the index of the message and the part."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.stages.served_gateway import Served, png, wav

SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Hello"}}
GOOD = {"type": "image_url", "image_url": {"url": png()}}
AUDIO = {"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}}
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


def cut(text: str, by: int) -> str:
    """Returns base64, or a data: URI of it, without the last bytes."""
    head, comma, body = text.rpartition(",")
    return head + comma + base64.b64encode(base64.b64decode(body)[:-by]).decode()


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


BROKEN = {"type": "image_url", "image_url": {"url": cut(png(), 40)}}
_WAV = bytearray(base64.b64decode(wav()))
_WAV[22] = 200
CHANNELS = {"data": base64.b64encode(_WAV).decode(), "format": "wav"}
"""Audio of 200 channels, as its header says."""
DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"a": DEEP}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncExitStack() as stack:
        served = Served()
        await served.start(stack)
        yield served.clients[False]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [SYSTEM, ANSWER, user("Look", GOOD, BROKEN)]}, "messages[2].content[2].image_url.url"),
        (
            {"messages": [user("Look", {"type": "image_url", "image_url": cut(png(), 40)})]},
            "messages[0].content[1].image_url",
        ),
        (
            {"messages": [user(AUDIO), user(AUDIO, {"type": "input_audio", "input_audio": CHANNELS})]},
            "messages[1].content[1].input_audio.data",
        ),
        (
            {"messages": [user("Hi"), call(name="f", arguments=json.dumps(DEEP))]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"tools": [*TOOLS, *TOOLS]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
            "tools[0].function.parameters",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice"),
        ({"chat_template_kwargs": DEEP}, "chat_template_kwargs"),
        ({"stop": ["x" * 5000]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"cache_salt": "é" * 100}, "cache_salt"),
        ({"messages": [user(*["x"] * 1100)]}, "messages"),
    ],
)
async def test_a_stage_s_error_names_the_client_s_field(client: httpx.AsyncClient, body: Any, param: str) -> None:
    asked = {"model": "m", "messages": [user("Hi")], **body}
    answer = await client.post("/v1/chat/completions", json=asked)
    error = answer.json()["error"]
    assert answer.status_code in (400, 413), error
    # The gateway itself refuses what nests too deeply, and names the place inside the field.
    assert error["param"] == param or error["param"].startswith(f"{param}."), error
    assert "start." not in error["message"], error
    assert "parts" not in error["message"] or param == "messages", error
