"""Who sends half a body, or reads no answer, keeps no place that somebody else needs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from omni_gateway.context import Budget, Gateway, Share
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.errors import UnavailableError
from omni_gateway.guard import body as guard_body, reply as guard_reply
from omni_gateway.guard.body import BodyReader
from omni_gateway.guard.middleware import Guard
from omni_gateway.guard.refusals import Refusals
from omni_gateway.http_server.app import create_app
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics
from support.peers.sockets import send, serve, status_of
from support.processes.polling import PATIENCE_S, until

HALF = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
)
WHOLE = HALF[:-1].replace(b"100", b"2") + b"{}"


async def test_incomplete_bodies_do_not_use_request_slots() -> None:
    """Six times as many half bodies as places keep nobody from being served: neither others, nor their own sender."""
    settings = GatewaySettings(max_requests=16)
    async with serve(create_app(StaticPipelines(()), settings)) as port:
        well_behaved = await send(port, HALF, "127.0.0.3")
        hoard = [await send(port, HALF, "127.0.0.2") for _ in range(96)]
        for reader, _ in hoard[:80]:
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"had not arrived when its place was needed" in answer
            assert b"connection: close" in answer
        assert await status_of(port, WHOLE) == b"400"
        assert await status_of(port, WHOLE, "127.0.0.2") == b"400"
        assert await status_of(port, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n") == b"200"
        well_behaved[1].write(b" " * 98 + b"}")
        assert (await asyncio.wait_for(well_behaved[0].readline(), PATIENCE_S)).split()[1] == b"400", "it had one slot"
        for _, writer in [well_behaved, *hoard]:
            writer.close()


def reader_of(*pieces: bytes) -> tuple[Receive, asyncio.Event]:
    """Returns a function that gives the pieces of a body that never ends, and an event: all pieces were taken."""
    left, taken = list(pieces), asyncio.Event()

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": True}
        taken.set()
        await asyncio.Event().wait()
        raise AssertionError

    return receive, taken


async def whole(*pieces: bytes) -> Message:
    return {"type": "http.request", "body": b"".join(pieces), "more_body": False}


@pytest.mark.parametrize("stalled_s", [0.0, 3600.0], ids=["they stall", "they have more"])
async def test_large_incomplete_bodies_release_their_memory(monkeypatch: pytest.MonkeyPatch, stalled_s: float) -> None:
    monkeypatch.setattr(guard_body, "STALLED_S", stalled_s)
    bodies, budget = BodyReader(1000, 60, slots=8, refusals=Refusals()), Budget(1000)
    tasks = []
    for _ in range(4):
        receive, taken = reader_of(b"x" * 240)
        tasks.append(asyncio.create_task(bodies.read(receive, None, Share(budget), "attacker")))
        await taken.wait()
    well_behaved = Share(budget)
    assert len(await bodies.read(lambda: whole(b"y" * 300), None, well_behaved, "honest")) == 300
    for _ in range(5):
        await asyncio.sleep(0)
    ended = [task for task in tasks if task.done() or task.cancelling()]
    assert len(ended) == 2, "no more than were needed"
    for task in ended:
        with pytest.raises(UnavailableError, match="needed for others"):
            await task
    for task in set(tasks) - set(ended):
        task.cancel()


async def test_an_arriving_body_is_not_dropped_for_an_equally_large_holder() -> None:
    bodies, budget = BodyReader(1000, 60, slots=8, refusals=Refusals()), Budget(1000)
    receive, taken = reader_of(b"x" * 600)
    first = asyncio.create_task(bodies.read(receive, None, Share(budget), "one"))
    await taken.wait()
    pieces = iter([b"y" * 350, b"y" * 350])

    async def more() -> Message:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    with pytest.raises(UnavailableError, match="Too many large requests"):
        await bodies.read(more, None, Share(budget), "other")
    assert not first.done()
    first.cancel()


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI app that sends more than the client's and the server's buffers hold, or a word."""
    if scope["path"] == "/word":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"word"})
        return
    with contextlib.suppress(asyncio.CancelledError):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            if scope["client"] is None:
                return


async def test_an_unread_answer_is_dropped_for_a_new_request(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(GatewaySettings(max_requests=4), StaticPipelines(()), Entries(), GatewayMetrics())
    guard: Any = Guard(stream, gateway, None, lambda: 1)
    word = b"GET /word HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serve(guard) as port:
        hoard = [await send(port, b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n", "127.0.0.2") for _ in range(4)]
        await until(lambda: len(guard._sending) == 4)
        assert await status_of(port, word) == b"503", "they have read until now"
        monkeypatch.setattr(guard_reply, "STALLED_S", 0.0)
        assert await status_of(port, word) == b"200"
        assert len(guard._sending) == 3, "one was enough"
        for _, writer in hoard:
            writer.transport.abort()
