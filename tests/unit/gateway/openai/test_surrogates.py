"""Half of a surrogate pair is refused, and the error names the field. JavaScript makes one when it cuts an emoji."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app

JSON = {"content-type": "application/json"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HALF = "hi \ud83d"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
            "messages[0].content[0].text",
        ),
        ("chat/completions", {"model": HALF}, "model"),
        ("chat/completions", {"stop": [HALF]}, "stop[0]"),
        ("chat/completions", {"metadata": {HALF: "1"}}, "metadata"),
        ("chat/completions", {HALF: 1}, None),
        ("audio/speech", {"model": "m", "input": HALF}, "input"),
    ],
)
def test_half_a_surrogate_pair_is_refused(path: str, fields: dict[str, Any], param: str | None) -> None:
    client = TestClient(create_app(StaticPipelines(())), raise_server_exceptions=False)
    # json.dumps escapes the half pair; httpx's own encoder would raise.
    answer = client.post(
        f"/v1/{path}", content=json.dumps({**CHAT, **fields} if "chat" in path else fields), headers=JSON
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert "surrogate" in error["message"]


def test_a_whole_emoji_is_text() -> None:
    client = TestClient(create_app(StaticPipelines(())))
    messages = [{"role": "user", "content": "hi \U0001f600"}]
    answer = client.post("/v1/chat/completions", content=json.dumps({**CHAT, "messages": messages}), headers=JSON)
    assert answer.json()["error"]["code"] == "model_not_found"
