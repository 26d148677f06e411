"""An ASGI app behind the gateway's HTTP protocol on a free port, and requests on plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import uvicorn
from starlette.types import ASGIApp

from omni_gateway.http_server.connections import bounded_http
from support.processes.polling import PATIENCE_S


@contextlib.asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[int]:
    """Yields the port of a server of an app."""
    config = uvicorn.Config(app, port=0, http=bounded_http(), ws="none", log_config=None, lifespan="off")
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def send(port: int, data: bytes, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))
    writer.write(data)
    await writer.drain()
    return reader, writer


async def status_of(port: int, data: bytes, peer: str = "127.0.0.1") -> bytes:
    reader, writer = await send(port, data, peer)
    line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return line.split()[1]
