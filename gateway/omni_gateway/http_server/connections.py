"""Limits HTTP/1.1 connections on which no request is in progress, and ignores offers of other protocols.

uvicorn (0.54) waits for a header without a time limit, and buffers it without a size limit. Here a connection without a
request has a deadline and a limit in bytes, and the number of such connections is limited. A connection with a request
is never closed in favour of another one; the guard limits such requests.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_proto.limits.bounded_connections import ConnectionTable

_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Limits of connections that have sent no request yet, or whose request has been answered."""

    waiting: int = 2048
    """Maximum number of such connections. There is no limit per peer: behind an ingress all connections may come
    from one peer. When the limit is exceeded, the peer with the most connections loses its oldest one."""
    header_s: float = 10.0
    """Seconds from the start of a connection to the end of its first header, and from the first byte of each later
    header to its end."""
    idle_s: float = 3660.0
    """Seconds from the end of an answer to the first byte of the next header. Clients and proxies keep an idle
    connection for less time (httpx 5 s; nginx and AWS' load balancer 60 s; Go and Traefik 90 s; Google's load balancer
    600 s; Envoy 3600 s). If the server closed first, a request that is already on its way could be lost."""
    header_bytes: int = 64 << 10
    """Maximum bytes of a header, and of the trailers after a chunked body."""


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits of ConnectionBounds."""

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
        self._is_idle = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first header."""
        super().connection_made(transport)
        if self.client is not None:
            # A socket for both families gives IPv4 addresses another form, which FORWARDED_ALLOW_IPS would not match.
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        self._peer = self.client[0] if self.client else ""
        self._wait(self._bounds.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a connection that has ended."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the received bytes. A header that is too large ends the connection with status 431, or without one if
        a request is in progress."""
        self._header_bytes += len(data)
        if self._is_idle and self._deadline is not None:
            self._is_idle = False
            self._deadline.cancel()
            self._deadline = self.loop.call_later(self._bounds.header_s, self.cut)
        super().data_received(data if self._in_body else without_upgrade(data))
        if self._header_bytes <= self._bounds.header_bytes or self.transport.is_closing():
            return
        if self._deadline is None or self._in_body:
            self.transport.abort()
        else:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pass on a header line. Trailers after a chunked body are dropped: nothing reads them, and uvicorn would keep
        them without a limit."""
        if not self._in_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the deadline, because a request begins."""
        self._stop_waiting()
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body, which does not count towards a header."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count bytes towards the next header, because the request is complete."""
        self._in_body = False
        self._header_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the deadline of the next header, if no pipelined request follows."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and not self.transport.is_closing():
            self._wait(self._bounds.idle_s)
            self._is_idle = True

    def cut(self) -> None:
        """Close the connection immediately."""
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
        self._is_idle = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._table.remove(self._peer, self)


def without_upgrade(data: bytes) -> bytes:
    """Returns the data with the header Upgrade renamed to a name of the same length.

    A server may ignore this header, but httptools drops the body of a request that has it. The JDK's HttpClient sends
    it with every request over http, to offer h2c (uvicorn's issue 2722).
    """
    if not _UPGRADE.search(data):
        return data
    header, blank, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nignored:", header) + blank + body


def bounded_http(bounds: ConnectionBounds | None = None) -> type[asyncio.Protocol]:
    """Returns the value for `http` of uvicorn.Config: a factory of the protocols of one server's connections."""
    bounds = bounds or ConnectionBounds()
    table: ConnectionTable[BoundedHttp] = ConnectionTable(bounds.waiting, bounds.waiting)
    # Not a class, but uvicorn only calls it.
    return partial(BoundedHttp, bounds=bounds, table=table)  # type: ignore[return-value]
