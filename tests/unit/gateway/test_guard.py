"""The guard around every request: when a request stops counting towards its key's limit of concurrent requests."""

from __future__ import annotations

from pathlib import Path

from starlette.types import Message, Receive, Scope, Send

from omni_gateway.api.context import Gateway
from omni_gateway.entries import Entries
from omni_gateway.guard.keys import KeyRing, hash_key
from omni_gateway.guard.middleware import Guard
from omni_gateway.metrics import GatewayMetrics
from omni_gateway.pipelines import StaticPipelines
from omni_gateway.settings import GatewaySettings


async def answer_in_two(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI app that answers with a body of two pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    await send({"type": "http.response.body", "body": b"two", "more_body": False})


async def nothing_more() -> Message:
    """Returns the message that a server sends for a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_who_read_an_answer_to_its_end_may_ask_again_at_once(tmp_path: Path) -> None:
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
