"""The lines of a watch are read completely, in order and in groups, however their bytes arrive over a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from itertools import chain

import pytest
from kubernetes.aio.client import Configuration

import omni_kube.api.client as client_module
from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.api.wire import WatchEvent
from omni_kube.errors import GoneError
from omni_kube.objects import ObjectKind
from omni_operator.process.metrics import Metrics
from support.processes.polling import PATIENCE_S

SERVICES = ObjectKind("Service", "v1", "services")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def event(version: int, size: int = 10) -> bytes:
    metadata = {"name": f"s{version}", "namespace": "ns", "resourceVersion": str(version), "labels": {"x": "y" * size}}
    return json.dumps({"type": "ADDED", "object": {"kind": "Service", "metadata": metadata}}).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[ApiClient]:
    """Yields a client of a server that handles each connection with `answer`."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    transport = Transport(ApiConnection(configuration, "test"), Metrics())
    try:
        yield ApiClient(transport, RateLimiter(1000.0, 100.0))
    finally:
        await transport.close()
        server.close()


async def watch(client: ApiClient) -> list[WatchEvent]:
    return [event async for events in client.watch(SERVICES, "ns", "1", 30.0) for event in events][1:]


def versions(events: Sequence[WatchEvent]) -> list[int]:
    return [int(event.version) for event in events]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 22])
async def test_lines_are_whole_wherever_they_are_cut(size: int) -> None:
    text = b"".join(event(version, 40) for version in range(2, 8))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for start in range(0, len(text), size):
            writer.write(chunk(text[start : start + size]))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")  # until the client closes

    async with serving(answer) as client:
        found = await watch(client)
    assert versions(found) == list(range(2, 8))
    assert all(event.seen is not None and event.seen.labels == {"x": "y" * 40} for event in found)


async def test_more_than_a_connection_holds_at_once_is_read_all_the_same() -> None:
    """The server must wait while the client does not read, and can continue when the client reads again."""
    count, size = 16, 1 << 20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for version in range(2, 2 + count):
            writer.write(chunk(event(version, size)))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

    async with serving(answer) as client:
        assert versions(await watch(client)) == list(range(2, 2 + count))


async def test_what_arrives_after_a_line_waits_for_the_next_and_both_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first line is read immediately. Later lines that arrive in one interval of GATHER_S are read together."""
    monkeypatch.setattr(client_module, "GATHER_S", 1.0)
    burst = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(event(2)))
        await burst.wait()
        for version in range(3, 20):
            writer.write(chunk(event(version)))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

    rounds: list[list[int]] = []
    async with serving(answer) as client:
        async for events in client.watch(SERVICES, "ns", "1", 30.0):
            if events[0].seen is not None:
                burst.set()  # the first line was read alone, without a wait
                rounds.append(versions(events))
    assert list(chain.from_iterable(rounds)) == list(range(2, 20))
    assert len(rounds) < 9, "18 lines that were sent one by one were not read in groups"


async def test_what_came_before_an_error_is_seen() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        gone = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}).encode()
        writer.write(HEAD + chunk(event(2) + event(3) + gone + b"\n" + event(4)))
        await reader.readuntil(b"\r\n\r\n")

    found: list[WatchEvent] = []

    async def follow(client: ApiClient) -> None:
        async for events in client.watch(SERVICES, "ns", "1", 30.0):
            found.extend(events)

    async with serving(answer) as client:
        with pytest.raises(GoneError):
            await follow(client)
    assert versions(found) == [1, 2, 3]


async def test_a_connection_whose_watch_has_ended_serves_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GATHER_S", 0.05)
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            for version in range(2, 5):
                writer.write(chunk(event(version)))
                await asyncio.sleep(0.02)
            writer.write(b"0\r\n\r\n")

    async with serving(answer) as client:
        for _ in range(4):
            assert versions(await watch(client)) == [2, 3, 4]
    assert connections == 1


async def test_a_watch_that_is_left_while_it_waits_ends_at_once() -> None:
    """Cancelling a watch closes its connection immediately, even while the client gathers further lines."""
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(event(2)))
        try:
            await reader.readexactly(1)
        finally:
            closed.set()

    async with serving(answer) as client:
        seen = asyncio.Event()

        async def follow() -> None:
            async for events in client.watch(SERVICES, "ns", "1", 30.0):
                if events[0].seen is not None:
                    seen.set()

        for _ in range(5):
            closed.clear()
            seen.clear()
            task = asyncio.create_task(follow())
            await seen.wait()
            await asyncio.sleep(0.01)  # while the client gathers lines
            task.cancel()
            await asyncio.wait_for(closed.wait(), PATIENCE_S)
            await asyncio.gather(task, return_exceptions=True)
