"""The guard around every request: which requests are counted, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import Message, Receive, Scope, Send

from omni_gateway.context import Gateway
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.guard.keys import KeyRing, hash_key
from omni_gateway.guard.middleware import Guard
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics


async def answer_in_two(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI app that answers with a body of two pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two", "more_body": False})


async def nothing_more() -> Message:
    """Returns the message that a server sends for a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_a_request_stops_counting_before_its_answer_ends(tmp_path: Path) -> None:
    """A request stops counting before the last piece of its answer is sent.

    So a client that sends one request at a time is never refused because of its previous request.
    """
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: one, sha256: {hash_key('k')}, limits: {{concurrentRequests: 1}}}}\n")
    gateway = Gateway(GatewaySettings(), StaticPipelines(()), Entries(), GatewayMetrics())
    guard = Guard(answer_in_two, gateway, KeyRing(file), lambda: 1)
    statuses: dict[str, int] = {}

    async def ask(name: str, at_piece: bytes = b"", then: str = "") -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[name] = message["status"]
            elif then and message["body"] == at_piece:
                await ask(then)

        headers = [(b"authorization", b"Bearer k")]
        await guard({"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}, nothing_more, send)

    await ask("first", b"two", "after its end")
    await ask("second", b"one", "during it")
    await ask("third")
    assert statuses == {"first": 200, "after its end": 200, "second": 200, "during it": 429, "third": 200}


@pytest.mark.parametrize(
    ("method", "path", "header", "is_open", "status"),
    [
        ("GET", "/v1/audio/voices", "", True, 200),
        ("GET", "/v1/audio/models", "", True, 200),
        ("GET", "/v1/audio/voices", "Bearer wrong", True, 401),
        ("GET", "/v1/models", "", True, 401),
        ("GET", "/v1/audio/voices", "", False, 401),
        ("GET", "/v1/audio/voices", "Bearer k", False, 200),
        ("POST", "/v1/audio/voices", "", True, 401),
    ],
)
async def test_the_lists_of_voices_need_no_key_if_the_settings_say_so(
    method: str, path: str, header: str, is_open: bool, status: int, tmp_path: Path
) -> None:
    """Open WebUI asks for both lists without a key, and after a 401 it offers only OpenAI's own names.

    A POST without a key is refused, because its body would be read, and may never arrive.
    """
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: one, sha256: {hash_key('k')}}}\n")
    app = create_app(StaticPipelines(()), GatewaySettings(keys_file=file, voices_without_key=is_open))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.request(method, path, headers={"authorization": header} if header else {})
    assert answer.status_code == status


async def test_probes_are_answered_at_the_limit_of_requests() -> None:
    """A gateway at its limit of requests is alive, so kubelet must not restart it."""
    app = create_app(StaticPipelines(()), GatewaySettings(max_requests=1))
    answering, let_go = asyncio.Event(), asyncio.Event()

    async def slow_send(message: Message) -> None:
        answering.set()
        await let_go.wait()

    slow = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
    held = asyncio.create_task(app({**slow, "query_string": b""}, nothing_more, slow_send))
    await answering.wait()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        paths = ("/health", "/ready", "/metrics", "/v1/models")
        statuses = {path: (await client.get(path)).status_code for path in paths}
    let_go.set()
    await held
    assert statuses == {"/health": 200, "/ready": 200, "/metrics": 200, "/v1/models": 503}


async def test_no_body_is_read_outside_the_api() -> None:
    """Such paths need no key. If their bodies were read, anyone could use up the limit of concurrent requests."""
    gateway = Gateway(GatewaySettings(), StaticPipelines(()), Entries(), GatewayMetrics())
    guard = Guard(answer_in_two, gateway, None, lambda: 1)
    sent: list[Message] = []

    async def body() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({"type": "http", "method": "POST", "path": "/", "headers": []}, body, send)
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(
    ("method", "path", "key", "status", "route"),
    [
        ("POST", "/v1/chat/completions", "", 401, "/v1/chat/completions"),
        ("POST", "/v1/audio/speech", "wrong", 401, "/v1/audio/speech"),
        ("GET", "/v1/models/team/a", "", 401, "/v1/models/{model:path}"),
        ("GET", "/v1/responses", "", 401, "/v1/responses"),
        ("GET", "/v1/nothing", "", 401, "other"),
        ("POST", "/v1/chat/completions", "used-up", 429, "/v1/chat/completions"),
        ("POST", "/v1/chat/completions", "k", 413, "/v1/chat/completions"),
        ("GET", "/v1/chat/completions", "k", 405, "/v1/chat/completions"),
        ("GET", "/v1/chat/completions", "", 401, "/v1/chat/completions"),
        ("GET", "/v1/responses", "k", 404, "/v1/responses"),
        ("GET", "/v1/nothing", "k", 404, "other"),
        ("GET", "/v1/models", "k", 200, "/v1/models"),
    ],
)
async def test_a_refused_request_counts_under_its_route(
    method: str, path: str, key: str, status: int, route: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    used_up = f"{{name: used-up, sha256: {hash_key('used-up')}, limits: {{requestsPerMinute: 1}}}}"
    file.write_text(f"keys:\n- {{name: one, sha256: {hash_key('k')}}}\n- {used_up}\n")
    app = create_app(StaticPipelines(()), GatewaySettings(keys_file=file, max_body_bytes=1024))
    if key == "used-up":
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            await client.get("/v1/models", headers={"authorization": "Bearer used-up"})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        content = b" " * 2000 if method == "POST" else None
        answer = await client.request(method, path, headers=headers, content=content)
    metrics = app.state.gateway.metrics.registry
    assert answer.status_code == status
    assert metrics.get_sample_value("omni_gateway_requests_total", {"route": route, "status": str(status)}) == 1


class AnyApp:
    """An ASGI app that takes every scope, as a route for WebSockets would."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope["type"])


async def test_a_websocket_of_another_path_is_refused_before_any_route_sees_it() -> None:
    """Only the route of sessions is a WebSocket, whatever other routes there are."""
    app, sent = AnyApp(), []
    guard = Guard(app, Gateway(GatewaySettings(), StaticPipelines(()), Entries(), GatewayMetrics()), None, lambda: 1)

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({"type": "websocket", "path": "/v1/chat/completions", "headers": []}, nothing_more, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
    with pytest.raises(ValueError, match="unknown ASGI scope 'webtransport'"):
        await guard({"type": "webtransport"}, nothing_more, send)
    await guard({"type": "lifespan"}, nothing_more, send)
    assert app.scopes == ["lifespan"]


@pytest.mark.parametrize(("key", "get", "status"), [("", 401, 401), ("wrong", 401, 401), ("k", 426, 404)])
async def test_a_session_needs_a_key_and_a_model(key: str, get: int, status: int, tmp_path: Path) -> None:
    """A wrong handshake is passed on as a GET without its offer. A right one has a scope of its own, and is answered
    with an HTTP status if it is refused."""
    file = tmp_path / "keys.yaml"
    file.write_text(f"keys:\n- {{name: one, sha256: {hash_key('k')}}}\n")
    app = create_app(StaticPipelines(()), GatewaySettings(keys_file=file))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        assert (await client.get("/v1/realtime", headers=headers)).status_code == get
    path = "/v1/realtime?model=nobody"
    with pytest.raises(WebSocketDenialResponse) as refused, TestClient(app).websocket_connect(path, headers=headers):
        pass
    assert refused.value.status_code == status
