"""The gateway's server: where it listens, and that it disconnects clients that stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omni_gateway import __main__ as program
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.http_server.app import create_app
from omni_gateway.http_server.server import GatewayServer, ListenOptions, make_server
from omni_gateway.settings import GatewaySettings
from support.processes.polling import PATIENCE_S


def answer_much(request: Request) -> Response:
    """Answers with more bytes than the kernel buffers."""
    return Response(bytes(8 << 20))


def report_address(request: Request) -> Response:
    """Answers with the client's address."""
    return Response(request.client.host if request.client else "")


def has_ipv6() -> bool:
    """Returns whether this machine has IPv6's loopback address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextlib.asynccontextmanager
async def serve(settings: GatewaySettings, host: str) -> AsyncIterator[GatewayServer]:
    """Yields a server with the two routes above."""
    app = create_app(StaticPipelines(()), settings)
    app.router.routes[:0] = [Route("/much", answer_much), Route("/address", report_address)]
    server = make_server(app, settings, ListenOptions(host, 0))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    running = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        await running


def port_of(server: GatewayServer) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - uvicorn has no events for these
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
async def test_a_client_that_never_reads_a_complete_answer_is_disconnected(connection: str) -> None:
    """The client's unsent answer is dropped after sendSeconds, even if uvicorn has closed the connection already:
    closing alone waits until everything is sent."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_S), serve(GatewaySettings(send_seconds=0.2), "127.0.0.1") as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port_of(server)))
            await loop.sock_sendall(
                client, f"GET /much HTTP/1.1\r\nhost: a\r\nconnection: {connection}\r\n\r\n".encode()
            )
            await until(lambda: server.server_state.total_requests == 1)
            await until(lambda: not server.server_state.connections)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_it_listens_on_every_address_of_both_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the default of --host. The address of an IPv4 client has its usual form, as in FORWARDED_ALLOW_IPS."""
    given: list[ListenOptions] = []
    monkeypatch.setattr(program, "serve", lambda pipelines, settings, listen, **rest: given.append(listen))
    program.main(["--endpoint", "m=grpc://127.0.0.1:1"])
    async with serve(GatewaySettings(), given[0].host) as server, httpx.AsyncClient() as client:
        for host in ("127.0.0.1", "[::1]"):
            answer = await client.get(f"http://{host}:{port_of(server)}/address")
            assert answer.text == host.strip("[]")


async def test_the_gateway_exits_if_its_port_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(GatewaySettings(), "127.0.0.1") as server:
        app = create_app(StaticPipelines(()))
        second = make_server(app, GatewaySettings(), ListenOptions("127.0.0.1", port_of(server)))
        with pytest.raises(SystemExit):
            await second.startup()
        assert f"port {port_of(server)} is taken by another program; end that program" in caplog.text
