"""uvicorn's HTTP/1.1 protocol, made strict and bounded.

StrictHttp: after an offer of another protocol, after CONNECT, and after bytes that the parser refuses, no later byte of
the connection is read as a request. Of these offers only handshakes for WebSockets that the gateway serves are taken;
see websockets. A proxy may take those bytes for something else, and would give the answer to
another user (request smuggling). uvicorn (0.54) reads on in the first two cases.

BoundedHttp: uvicorn waits for a header without a time limit, and buffers it without a size limit. Here a connection
without a request has a deadline and a limit in bytes, and the number of such connections is limited. A connection with
a request that has begun is never closed in favour of another one; the guard limits such requests. Requests begin in
turn; see turns.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_gateway.errors import GatewayError, HeaderTooLargeError, MalformedRequestError, answer_error
from omni_gateway.guard.record import PROBES
from omni_gateway.guard.reply import CUT
from omni_gateway.http_server.turns import Turns, Waiting
from omni_gateway.http_server.websockets import is_handshake
from omni_proto.runtime.connections import ConnectionTable

PIPELINED: Final = 8
"""Maximum number of requests that may wait on a connection for the answers to earlier ones."""
PIECES: Final = 4096
PIECE_BYTES: Final = 64
"""A body of more pieces is refused if they are smaller than this on average: each costs time of its own."""
LINGER_S: Final = 2.0
"""How long the client may take to read the last answer. What it still sends is dropped: if it were left unread, the
kernel would reset the connection, and the client might lose the answer."""
_OFFER: Final = (b"upgrade", b"connection")
_VERSIONS: Final = ("1.0", "1.1")


class StrictHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which reads nothing after the first byte that may not be HTTP/1.1.

    Complete requests before that byte are answered, in order. Then comes an error, and the connection is closed.
    """

    def __init__(self, *args: Any, header_bytes: int, header_lines: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_limit = header_bytes
        self._line_limit = header_lines
        self._handshake = False
        """Whether the head is a handshake for a WebSocket that is served here."""
        self._offered: bytes | None = None
        """The head of a request that offers another protocol, without the offer."""
        self._in_body = False
        """Whether a head is complete, and its body is not."""
        self._pieces = 0
        """Pieces and trailers of the body."""
        self._body_bytes = 0
        self._wrong: GatewayError | None = None
        """Why a head was refused."""
        self._end: GatewayError | None = None
        """The connection's last answer. Once it is set, nothing more is parsed."""
        # Without the leniency that uvicorn sets, which lets requests follow one with `connection: close`.
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        while rest and self._end is None:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                if self._handshake:
                    self._leave_http(bytes(rest))
                    return
                self._read_without_offer()
            except httptools.HttpParserError as error:
                self._refuse(error)

    def _leave_http(self, rest: bytes) -> None:
        """Pass the connection on to the protocol for WebSockets. rest: what the client sent behind the handshake."""
        self.handle_websocket_upgrade()
        if rest:
            self.transport.get_protocol().data_received(rest)  # type: ignore[attr-defined]

    def _read_without_offer(self) -> None:
        """Parse the head of a request again, without its offer of another protocol.

        A server may ignore an offer. The JDK's HttpClient offers h2c with each request over http (uvicorn's issue
        2722). httptools skips the body of such a request, so a new parser reads it. In the head that it gets,
        `connection: close` replaces the offer. So it refuses whatever follows the body.
        """
        head, self._offered = self._offered, None
        self.parser = httptools.HttpRequestParser(self)
        try:
            if head is None:
                raise httptools.HttpParserError("another protocol follows")
            self.parser.feed_data(head)
        except httptools.HttpParserError as error:
            self._refuse(error)

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is refused or offers another protocol."""
        wrong = self._find_wrong()
        if wrong is not None:
            self._stop(wrong)
        if self.parser.should_upgrade():
            if self._takes_handshake():
                self._handshake = True
                self.scope["method"] = "GET"
                return
            start = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
            first = b"%b %b HTTP/%b\r\nconnection: close\r\n" % start
            lines = [b"%b: %b\r\n" % line for line in self.headers if line[0] not in _OFFER]
            self._offered = b"".join((first, *lines, b"\r\n"))
            return
        super().on_headers_complete()
        self._in_body = True
        self._pieces = self._body_bytes = 0

    def _takes_handshake(self) -> bool:
        """Returns whether the head is a handshake, and no earlier request waits for its answer."""
        is_next = not self.pipeline and (self.cycle is None or self.cycle.response_complete)
        return (
            self.ws_protocol_class is not None
            and is_next
            and is_handshake(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        )

    def _find_wrong(self) -> GatewayError | None:
        """Returns what is wrong with a complete head."""
        if len(self.headers) > self._line_limit:
            return HeaderTooLargeError(
                f"The header has {len(self.headers)} lines, at most {self._line_limit} are read."
            )
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._header_limit:
            return HeaderTooLargeError(f"The header is larger than {self._header_limit} bytes, the limit.")
        version = self.parser.get_http_version()
        coding = [value for name, value in self.headers if name == b"transfer-encoding"]
        if version not in _VERSIONS:
            return MalformedRequestError(f"HTTP/{version} is not read here; use HTTP/1.1.")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1:
            return MalformedRequestError("The header names several hosts; send one line `host`.")
        if self.parser.get_method() == b"CONNECT":
            return MalformedRequestError("The gateway is no proxy: CONNECT is refused.")
        if coding and (version == "1.0" or [one.lower() for one in coding] != [b"chunked"]):
            return MalformedRequestError("The only transfer-encoding that is read is chunked, with HTTP/1.1.")
        if len(self.pipeline) >= PIPELINED:
            return MalformedRequestError(
                f"More than {PIPELINED} requests wait on this connection; read answers before you send more."
            )
        if version == "1.1" and not hosts:
            return MalformedRequestError("The header has no line `host`, which HTTP/1.1 requires; send one.")
        return None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Pass on a header line. Trailers after a chunked body are dropped: nothing reads them, and uvicorn would keep
        them without a limit."""
        if self._in_body:
            self._count_piece(0)
            return
        super().on_header(name, value)
        if len(self.headers) > self._line_limit:
            self._stop(HeaderTooLargeError(f"The header has more than {self._line_limit} lines, the limit."))

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._count_piece(len(body))
        super().on_body(body)

    def _count_piece(self, size: int) -> None:
        self._pieces += 1
        self._body_bytes += size
        if self._pieces > PIECES and self._body_bytes < PIECE_BYTES * self._pieces:
            said = f"The body comes in pieces of less than {PIECE_BYTES} bytes; send larger chunks."
            self._stop(MalformedRequestError(said))

    def _stop(self, error: GatewayError) -> None:
        """Make the parser refuse what it parses."""
        self._wrong = error
        raise error

    def on_message_complete(self) -> None:
        """Note the end of a body."""
        if self._offered is None and not self._handshake:
            self._in_body = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin the next request. After the last one, end the connection if nothing more is parsed."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and self._end is not None:
            self._finish()

    def _refuse(self, error: Exception) -> None:
        """Parse nothing more. The error is answered after the complete requests. A request whose body is wrong gets no
        other answer."""
        said = f"The gateway cannot read this as a request of HTTP/1.1: {error}."
        self._end = self._wrong or MalformedRequestError(said)
        cycle = self.cycle
        if not self._in_body:
            if cycle is None or cycle.response_complete:
                self._finish()
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()  # the newest request, which has not begun
        elif cycle.response_started:
            self.transport.abort()  # a second answer to one request would be taken for the answer to the next one
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._finish()

    def _finish(self) -> None:
        """Send the last answer, and close the connection once the client has read it."""
        if self._end is None or self.transport.is_closing():
            return
        answer = answer_error(self._end)
        body = json.dumps(answer.body).encode()
        head = f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\ncontent-type: application/json\r\n"
        self.flow.resume_reading()
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()


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
