"""Limits of HTTP/1.1 connections on which no request is in progress.

uvicorn (0.54) waits for a header as long as its sender likes, and keeps all of it, whatever its size. Here a
connection without a request has a deadline and a limit in bytes, and the number of such connections is limited. One
with a
request is bounded by the guard: it is never cut for another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_proto.bounded_connections import ConnectionTable

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of connections that have sent no request yet, or whose request has been answered."""

    waiting: int = 2048
    """At a time. Behind an ingress all of them may be of one peer, so a peer has no bound of its own; but when there is
    no room, the peer with most of them loses its oldest."""
    header_s: float = 10.0
    """From the begin of a connection to the end of its first header."""
    idle_s: float = 75.0
    """From the end of an answer to the end of the next header. Longer than clients and proxies keep an idle connection
    (httpx 5 s; nginx and AWS' load balancer 60 s): a server that closes first may cut a request that is on its way."""
    header_bytes: int = 64 << 10


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol within ConnectionBounds."""

    def __init__(
        self,
        *args: Any,
        bounds: ConnectionBounds,
        table: ConnectionTable[BoundedHttp],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._bounds = bounds
        self._table = table
        self._peer = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins: it waits for a header."""
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._wait(self._bounds.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came. A header that grows too large ends the connection."""
        if not self._in_body:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._deadline is None or self._in_body or self._header_bytes <= self._bounds.header_bytes:
            return
        if not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of a header. What follows a body in chunks is dropped: nobody reads it, and it has no bound."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._stop_waiting()
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request's body is complete."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """A request has its answer."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and not self.transport.is_closing():
            self._wait(self._bounds.idle_s)

    def cut(self) -> None:
        """End the connection at once."""
        if not self.transport.is_closing():
            self.transport.abort()

    def _wait(self, longest_s: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(longest_s, self.cut)
        victim = self._table.enter(self._peer, self)
        if victim is not None:
            victim.cut()

    def _stop_waiting(self) -> None:
        self._header_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._table.remove(self._peer, self)


def bounded_http(bounds: ConnectionBounds | None = None) -> type[asyncio.Protocol]:
    """Returns what uvicorn.Config takes as `http`: makes the protocol of each connection of one server."""
    bounds = bounds or ConnectionBounds()
    table: ConnectionTable[BoundedHttp] = ConnectionTable(bounds.waiting, bounds.waiting)
    # uvicorn only calls it.
    return partial(BoundedHttp, bounds=bounds, table=table)  # type: ignore[return-value]
