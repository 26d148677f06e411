"""Forms of HTTP that programs other than OpenAI's clients use: another content type, no body, HEAD."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings


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
def test_a_body_that_is_not_a_json_object_is_refused_with_the_remedy(
    client: TestClient, path: str, body: bytes, content_type: str
) -> None:
    answer = client.post(path, content=body, headers={"content-type": content_type})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_json", None)
    assert "content-type: application/json" in error["message"]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/v1/chat/completions"])
def test_a_base_url_without_v1_or_with_two_is_explained(client: TestClient, path: str) -> None:
    answer = client.post(path, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"] == (
        f"No route POST {path}. The routes of the API begin with one /v1/, and /docs lists them."
    )


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity, GZIP"])
def test_a_compressed_body_is_refused_and_its_encoding_named(client: TestClient, encoding: str) -> None:
    """The error names the content-encoding. If compressed bytes were parsed as JSON, the error could not name it."""
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = client.post("/v1/chat/completions", content=gzip.compress(b'{"model": "m"}'), headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    error = answer.json()["error"]
    assert error["code"] == "unsupported_encoding"
    assert f"content-encoding {encoding!r}" in error["message"]
    assert "uncompressed" in error["message"]


def test_content_encoding_identity_is_accepted(client: TestClient) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert client.post("/v1/chat/completions", json=asked, headers={"content-encoding": "Identity"}).status_code == 404


def test_a_binary_body_is_not_json(client: TestClient) -> None:
    """A compressed body without a content-encoding is not UTF-8, and is refused like any other body without JSON."""
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/chat/completions", content=gzip.compress(b"{}"), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions"])
def test_extra_slashes_in_a_base_url_are_ignored(client: TestClient, path: str) -> None:
    """Programs join a base URL that ends with a slash and a path that begins with one."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    answer = client.post(f"http://testserver{path}", json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/v1//models", "//v1/models/", "/v1/models/"])
def test_extra_slashes_do_not_bypass_authentication(tmp_path: Path, path: str) -> None:
    (tmp_path / "keys.yaml").write_text(f"keys: [{{name: a, sha256: '{'0' * 64}'}}]")
    app = create_app(StaticPipelines(()), GatewaySettings(keys_file=tmp_path / "keys.yaml"))
    assert TestClient(app).get(f"http://testserver{path}").status_code == 401


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/JSON;charset=UTF-8"])
def test_a_charset_is_accepted(client: TestClient, content_type: str) -> None:
    asked = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'
    answer = client.post("/v1/chat/completions", content=asked, headers={"content-type": content_type})
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity"])
def test_nan_and_infinity_are_refused(client: TestClient, value: bytes) -> None:
    """Python's json reads these, and protobuf's JSON does not: a schema with one would fail later."""
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": %b}' % value
    answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/metrics", "/docs", "/v1/models", "/v1/audio/voices", "/v1/audio/models"]
)
def test_head_requests_are_answered(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
