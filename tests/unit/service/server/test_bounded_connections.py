"""A plain HTTP port closes connections of peers that hoard them or send half a header, and still answers requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, Gauge

from omni_proto.runtime.connections import BoundedConnections, ConnectionTable, open_listener
from omni_stage.errors import ConfigurationError
from omni_stage.service.server.ports import MetricsServer
from support.processes.polling import PATIENCE_S

HOARD = 2_000


@pytest.mark.parametrize(
    ("came", "gone", "left"),
    [
        (["a1", "a2", "a3"], [], 3),
        (["a1", "a2", "a3", "a4"], ["a1"], 3),
        (["a1", "a2", "a3", "b1", "b2", "c1"], ["a1"], 5),
        (["a1", "b1", "a2", "b2", "c1", "c2"], ["a1"], 5),
    ],
    ids=["room for all", "a peer above its share", "full port: peer with the most", "full port: oldest peer"],
)
def test_which_connection_is_closed(came: list[str], gone: list[str], left: int) -> None:
    """A peer above its share loses its oldest connection. On a full port, the peer that has the most loses one."""
    table: ConnectionTable[str] = ConnectionTable(in_all=5, per_peer=3)
    assert [victim for name in came if (victim := table.enter(name[0], name)) is not None] == gone
    assert len(table) == left


def test_one_that_is_gone_is_not_counted_twice() -> None:
    table: ConnectionTable[str] = ConnectionTable(in_all=2, per_peer=1)
    table.enter("a", "a1")
    assert table.enter("a", "a2") == "a1"
    table.remove("a", "a1")
    assert len(table) == 1
    table.remove("a", "a2")
    assert len(table) == 0


@pytest_asyncio.fixture
async def server() -> AsyncIterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("omni_stage_x_requests", "How many.", registry=registry).set(7)
    running = MetricsServer(registry)
    await running.start("127.0.0.1", 0)
    yield running
    await running.close()


async def get(port: int, path: str = "/metrics", peer: str = "127.0.0.2", method: str = "GET") -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: stage\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer.decode()


async def test_idle_connections_hold_neither_threads_nor_the_port(server: MetricsServer) -> None:
    before = threading.active_count()
    hoard = []
    loop = asyncio.get_running_loop()
    for number in range(HOARD):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", server.port))
        if number % 2:
            await loop.sock_sendall(one, b"GET /metrics HTTP/1.1\r\nHost: s")
        hoard.append(one)
    try:
        assert "omni_stage_x_requests 7.0" in await get(server.port)
        assert "omni_stage_x_requests 7.0" in await get(server.port, peer="127.0.0.1"), (
            "even the hoarding peer's own request is answered"
        )
        assert threading.active_count() <= before + 1
    finally:
        for one in hoard:
            one.close()


async def test_half_a_header_ends_with_the_connections_life() -> None:
    bounds = BoundedConnections(asyncio.Protocol, life_s=0.05)
    listener = open_listener("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(bounds, sock=listener):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET /metrics HT")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert len(bounds.table) == 0
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/metrics", "200"), ("GET", "/debug", "404"), ("POST", "/metrics", "405")]
)
async def test_what_is_answered(server: MetricsServer, method: str, path: str, status: str) -> None:
    answer = await get(server.port, path, method=method)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "Connection: close" in answer


async def test_a_taken_port_names_the_field(server: MetricsServer) -> None:
    with pytest.raises(ConfigurationError, match=r"listen\.metricsPort"):
        await MetricsServer(CollectorRegistry()).start("127.0.0.1", server.port)
