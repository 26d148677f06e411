"""The operator's own ports answer the requests of one peer while another peer keeps many connections open."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from omni_operator.process.liveness import HttpEndpoints
from support.processes.polling import PATIENCE_S

HOARD = 1_000


@pytest_asyncio.fixture
async def ports(tmp_path: Path) -> AsyncIterator[dict[str, int]]:
    endpoints = HttpEndpoints(list, lambda: ["not yet"], lambda accept: (b"x 1\n", "text/plain"))
    await endpoints.start(0, 0, tmp_path / "address.json")
    yield json.loads((tmp_path / "address.json").read_text())
    await endpoints.stop()


async def get(port: int, path: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: operator\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode().partition("\r\n\r\n")
    writer.close()
    return head.split()[1], body


@pytest.mark.parametrize(
    ("port", "path", "expected"),
    [
        ("health", "/healthz", ("200", "ok\n")),
        ("health", "/readyz", ("503", "not yet\n")),
        ("metrics", "/metrics", ("200", "x 1\n")),
    ],
)
async def test_idle_connections_keep_nobody_out(
    ports: dict[str, int], port: str, path: str, expected: tuple[str, str]
) -> None:
    hoard = []
    loop = asyncio.get_running_loop()
    for _ in range(HOARD):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", ports[port]))
        hoard.append(one)
    assert await get(ports[port], path) == expected
    closed = 0
    for one in hoard:
        try:
            closed += one.recv(1) == b""
        except ConnectionError:
            closed += 1
        except BlockingIOError:
            pass
        one.close()
    assert closed >= HOARD - 32, "the port keeps few connections of one peer"
