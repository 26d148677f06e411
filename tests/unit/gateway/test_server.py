"""The gateway's server disconnects clients that stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omni_gateway.app import create_app
from omni_gateway.pipelines import StaticPipelines
from omni_gateway.server import Listen, make_server
from omni_gateway.settings import GatewaySettings


def answer_much(request: Request) -> Response:
    """Answers with more bytes than the kernel buffers."""
    return Response(bytes(8 << 20))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - uvicorn has no events for these
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_client_that_reads_nothing_of_a_complete_answer_is_disconnected(connection: str) -> None:
    """Its unsent answer is dropped after sendSeconds, even if uvicorn has closed the connection already: closing alone
    waits until everything is sent."""
    settings = GatewaySettings(send_seconds=0.2)
    app = create_app(StaticPipelines(()), settings)
    app.router.routes.insert(0, Route("/much", answer_much))
    server = make_server(app, settings, Listen(port=0))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    running = asyncio.create_task(server.serve())
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        async with asyncio.timeout(60):
            await until(lambda: server.started)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
            await loop.sock_sendall(client, f"GET /much HTTP/1.1\r\nconnection: {connection}\r\n\r\n".encode())
            await until(lambda: server.server_state.total_requests == 1)
            await until(lambda: not server.server_state.connections)
    server.should_exit = True
    await running
