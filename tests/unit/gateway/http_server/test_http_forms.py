"""Forms of HTTP that programs other than OpenAI's clients use: another content type, no body, HEAD."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app


@pytest.fixture
def client() -> TestClient:
    return TestClient(create_app(StaticPipelines(())))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"model": "m"}', "application/x-www-form-urlencoded"),  # curl's default
        (b'{"model": "m"}', "text/plain"),
        (b"[1]", "application/json"),
        (b"", "application/json"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_with_what_to_send(
    client: TestClient, path: str, body: bytes, content_type: str
) -> None:
    answer = client.post(path, content=body, headers={"content-type": content_type})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert "content-type: application/json" in error["message"]


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_monitors_may_use_head(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
