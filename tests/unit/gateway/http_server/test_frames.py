"""A WebSocket's frames cost more than their bytes: they are taken in small portions, and at a limited rate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import uvicorn

from omni_gateway.http_server.connections import bounded_http
from omni_gateway.http_server.websockets import FRAMES, SLICE_BYTES, Arriving, BoundedWebSocket
from support.processes.polling import PATIENCE_S

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = b"\0\0\0\0"
EMPTY = b"\x81\x80" + MASK
BEGIN, NEXT, END = b"\x01\x81" + MASK + b"a", b"\x00\x81" + MASK + b"a", b"\x80\x81" + MASK + b"a"
PING = b"\x89\xfd" + MASK + b"p" * 125
SMALLEST = 6
"""Bytes of the smallest frame of a client."""


class Session:
    """An ASGI app that accepts a session and keeps what it receives."""

    def __init__(self, expected: int = 0) -> None:
        self.texts: list[str] = []
        self.expected = expected
        self.has_all = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            self.texts.append(message["text"])
            if len(self.texts) == self.expected:
                self.has_all.set()


@contextlib.asynccontextmanager
async def open_session(session: Session) -> AsyncIterator[tuple[Any, socket.socket]]:
    """Yields the server's protocol after a handshake, and the client's socket."""
    socket_protocol: Any = partial(BoundedWebSocket, arriving=Arriving())
    config = uvicorn.Config(session, http=bounded_http(), ws=socket_protocol, log_config=None, lifespan="off")
    state = uvicorn.server.ServerState()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(
        lambda: bounded_http()(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        ours,
    )
    try:
        await loop.sock_sendall(theirs, HANDSHAKE)
        assert (await asyncio.wait_for(loop.sock_recv(theirs, 65536), PATIENCE_S)).startswith(b"HTTP/1.1 101 ")
        yield transport.get_protocol(), theirs  # type: ignore[attr-defined]
    finally:
        transport.abort()
        theirs.close()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@pytest.mark.parametrize("sent", [EMPTY * 40_000, BEGIN + NEXT * 40_000], ids=["messages", "fragments"])
async def test_others_have_their_turn_between_the_frames_of_a_piece(sent: bytes) -> None:
    """One piece holds 40,000 frames, which take seconds. Each turn of the event loop takes a few of them."""
    session = Session()
    async with open_session(session) as (protocol, _):
        protocol.data_received(sent)
        taken = [0]
        for _ in range(200):
            await asyncio.sleep(0)
            taken.append(len(session.texts) + len(protocol.frames))
        assert max(after - before for before, after in itertools.pairwise(taken)) <= SLICE_BYTES / SMALLEST
        assert taken[-1] <= FRAMES + SLICE_BYTES / SMALLEST


async def test_all_messages_of_a_piece_arrive_in_order() -> None:
    """More than the rate allows at once, and a message in fragments."""
    session = Session(FRAMES + 201)
    async with open_session(session) as (_, client):
        sent = b"".join(b"\x81\x84" + MASK + b"%04d" % number for number in range(FRAMES + 200))
        await asyncio.get_running_loop().sock_sendall(client, sent + BEGIN + NEXT * 10 + END)
        await asyncio.wait_for(session.has_all.wait(), PATIENCE_S)
    assert session.texts == [*(f"{number:04d}" for number in range(FRAMES + 200)), "a" * 12]


async def test_answers_to_pings_that_nobody_reads_do_not_pile_up() -> None:
    async with open_session(Session()) as (protocol, client):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.get_running_loop().sock_sendall(client, PING * 40_000)
        assert protocol.transport.get_write_buffer_size() < (FRAMES + SLICE_BYTES) * len(PING)
        assert not protocol.writable.is_set() or len(protocol._unread) < 1 << 20
