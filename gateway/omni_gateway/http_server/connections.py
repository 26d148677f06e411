"""The limits of connections.

uvicorn waits for a header without a time limit, and buffers it without a size limit. Here a connection without a
request has a deadline and a limit in bytes, and the number of such connections is limited. A connection with a request
that has begun is never closed in favour of another one; the guard limits such requests. Requests begin in turn; see
turns.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from omni_gateway.errors import HeaderTooLargeError
from omni_gateway.guard.record import PROBES
from omni_gateway.guard.reply import CUT
from omni_gateway.http_server.strict_http import StrictHttp
from omni_gateway.http_server.turns import Turns, Waiting
from omni_proto.runtime.connections import ConnectionTable


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
    header_lines: int = 256
    """Maximum lines of a header. Each line costs far more time than its bytes."""


class BoundedHttp(StrictHttp):
    """StrictHttp with the limits of ConnectionBounds."""

    def __init__(
        self,
        *args: Any,
        bounds: ConnectionBounds,
        table: ConnectionTable[BoundedHttp],
        turns: Turns,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, header_bytes=bounds.header_bytes, header_lines=bounds.header_lines, **kwargs)
        self._bounds = bounds
        self._table = table
        self._turns = turns
        self._peer = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
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
        super().data_received(data)
        if self._header_bytes <= self._bounds.header_bytes or self.transport.is_closing() or self._end is not None:
            return
        if self._deadline is None or self._in_body:
            self.transport.abort()
        else:
            self._end = HeaderTooLargeError(f"The header is larger than {self._bounds.header_bytes} bytes, the limit.")
            self._finish()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Begin a request in its turn; a probe at once."""
        start = super()._start_asgi_task
        if cycle.scope["path"] in PROBES:
            start(cycle, app)
            return

        def begin() -> None:
            if not cycle.disconnected:
                start(cycle, app)

        self._turns.enter(self._peer, Waiting(begin, self.cut))

    def on_headers_complete(self) -> None:
        """Stop the deadline if a request begins."""
        self.scope["extensions"] = {CUT: {"cut": self.cut}}
        super().on_headers_complete()
        if self._in_body:
            self._stop_waiting()

    def _leave_http(self, rest: bytes) -> None:
        """Stop the deadline as well."""
        self._stop_waiting()
        super()._leave_http(rest)

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body, which does not count towards a header."""
        self._header_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count bytes towards the next header, because the request is complete."""
        self._header_bytes = 0
        super().on_message_complete()
        if (
            self._offered is None and not self._handshake and self.cycle.response_complete
        ):  # answered before its body had arrived
            self._await_next()

    def on_response_complete(self) -> None:
        """Start the deadline of the next header, if no pipelined request follows."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            self._await_next()

    def cut(self) -> None:
        """Close the connection immediately."""
        self._leave_answered()
        if not self.transport.is_closing():
            self.transport.abort()

    def _await_next(self) -> None:
        if self._end is None and not self.transport.is_closing():
            self._wait(self._bounds.idle_s)
            self._is_idle = True

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


def bounded_http(bounds: ConnectionBounds | None = None) -> type[asyncio.Protocol]:
    """Returns the value for `http` of uvicorn.Config: a factory of the protocols of one server's connections."""
    bounds = bounds or ConnectionBounds()
    table: ConnectionTable[BoundedHttp] = ConnectionTable(bounds.waiting, bounds.waiting)
    # Not a class, but uvicorn only calls it.
    return partial(BoundedHttp, bounds=bounds, table=table, turns=Turns())  # type: ignore[return-value]
