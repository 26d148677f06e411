"""A TCP proxy, on its own thread, that simulates a bad network: slow, fragmented, interrupted, half-open or stuck.

    with TcpProxy("127.0.0.1:50051") as proxy:
        client = AsyncOmniClient(proxy.target)
        proxy.toxics = Toxics(latency_s=0.2)   # from now on, also for existing connections
        proxy.heal()

`stop_after` and `reset_after` count the bytes of one connection in both directions, from when they are set.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

READ_BYTES = 64 << 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Toxics:
    """Faults of the network. The default has none."""

    latency_s: float = 0.0
    """Delay of every piece, in both directions."""
    bytes_per_s: float | None = None
    """Bandwidth of a connection, separately in each direction."""
    slice_bytes: int | None = None
    """Largest piece that is forwarded in one write, with a pause between pieces."""
    stop_after: int | None = None
    """Bytes that pass before all further bytes are dropped silently. The connections stay open. 0: drop immediately."""
    reset_after: int | None = None
    """Bytes that pass before both ends get a reset (RST). 0: at the next byte."""
    paused: bool = False
    """Whether bytes are held back until the pause ends. None are lost."""
    refuse: bool = False
    """Whether new connections are reset immediately."""
    half_open: bool = False
    """Whether the server's end is closed while the client's end stays open, accepts bytes and never answers."""


HEALTHY = Toxics()


class TcpProxy:
    """Listens on a free loopback port and forwards to `backend` ("host:port"), which may be changed."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.connections = 0
        """Number of connections accepted so far."""
        self._toxics = HEALTHY
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[object] | None] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen)
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def target(self) -> str:
        """Returns the address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def dead_connections(self) -> int:
        """Returns the number of open connections that have lost bytes or are half-open."""
        return sum(link.dead for link in list(self._links))

    @property
    def toxics(self) -> Toxics:
        """Returns the present faults. Setting them also affects existing connections."""
        return self._toxics

    @toxics.setter
    def toxics(self, toxics: Toxics) -> None:
        def apply() -> None:
            self._toxics = toxics
            for link in self._links:
                link.on_change()

        self._loop.call_soon_threadsafe(apply)

    def heal(self, *, reset_dead: bool = True) -> None:
        """Removes all faults. A connection that has lost bytes or is half-open never works again.

        With `reset_dead` such a connection is reset immediately, as by a firewall that no longer knows it. Otherwise it
        stays open and silent.
        """
        self.toxics = HEALTHY

        def reset() -> None:
            for link in [link for link in self._links if link.dead]:
                link.reset()

        if reset_dead:
            self._loop.call_soon_threadsafe(reset)

    def cut(self) -> None:
        """Resets every existing connection."""

        def reset() -> None:
            for link in list(self._links):
                link.reset()

        self._loop.call_soon_threadsafe(reset)

    def close(self) -> None:
        """Ends every connection and the thread."""

        async def stop() -> None:
            self._server.close()
            for link in list(self._links):
                link.reset()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._call(stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return asyncio.run_coroutine_threadsafe(start(), self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._take, "127.0.0.1", 0, limit=READ_BYTES)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._toxics.refuse:
            _reset(writer)
            return
        host, _, port = self.backend.rpartition(":")
        try:
            up_reader, up_writer = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
        except OSError:
            _reset(writer)
            return
        link = _Link(self, writer, up_writer)
        self._links.add(link)
        # asyncio has only weak references to the tasks of lost connections, so this set keeps them alive.
        task = asyncio.current_task()
        self._tasks.add(task)
        link.on_change()
        try:
            await asyncio.gather(link.pump(reader, up_writer), link.pump(up_reader, writer))
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            link.reset()


class _Link:
    """A client's connection and the matching connection to the backend."""

    def __init__(self, proxy: TcpProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        self._passed = 0
        self._changed = asyncio.Event()
        self.dead = False
        """Whether bytes were lost or the connection is half-open. No further byte is forwarded then."""

    def on_change(self) -> None:
        """Handles changed toxics: restarts the byte counts and wakes paused directions."""
        self._passed = 0
        self._changed.set()
        self._changed = asyncio.Event()
        if self._proxy.toxics.half_open:
            self.dead = True
            self._server.close()

    def reset(self) -> None:
        """Sends RST to both ends."""
        for writer in (self._client, self._server):
            _reset(writer)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction until it ends."""
        from_server = writer is self._client
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if not await self._pass_on(data, writer):
                    self.reset()
                    return
            if from_server and self.dead:
                await asyncio.Event().wait()
            if writer.can_write_eof():
                writer.write_eof()

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Forwards data with the toxics applied. Returns False if the connection must be reset."""
        while data:
            toxics = self._proxy.toxics
            if toxics.paused:
                await self._changed.wait()
                continue
            size = min(len(data), toxics.slice_bytes or len(data))
            if toxics.bytes_per_s is not None:
                size = min(size, max(1, int(toxics.bytes_per_s / 20)))
            piece, data = data[:size], data[size:]
            delay = toxics.latency_s + (size / toxics.bytes_per_s if toxics.bytes_per_s else 0.0)
            if toxics.slice_bytes is not None:
                delay += 0.0005
            if delay:
                await asyncio.sleep(delay)
            self._passed += size
            if toxics.reset_after is not None and self._passed > toxics.reset_after:
                return False
            self.dead = self.dead or (toxics.stop_after is not None and self._passed > toxics.stop_after)
            if self.dead:
                continue
            writer.write(piece)
            await writer.drain()
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        # With SO_LINGER 0 the peer gets RST instead of FIN.
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport = writer.transport
    if transport is not None:
        transport.abort()
