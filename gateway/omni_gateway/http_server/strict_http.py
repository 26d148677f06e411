"""uvicorn's HTTP/1.1 protocol, made strict.

After an offer of another protocol, after CONNECT, and after bytes that the parser refuses, no later byte of the
connection is read as a request. Of these offers only handshakes for WebSockets that the gateway serves are taken; see
websockets. A proxy may take those bytes for something else, and would give the answer to another user (request
smuggling). uvicorn (0.54) reads on in the first two cases.
"""

from __future__ import annotations

import json
import re
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
from starlette.types import Message
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omni_gateway.errors import GatewayError, HeaderTooLargeError, MalformedRequestError, answer_error
from omni_gateway.http_server.websockets import is_handshake

PIPELINED: Final = 8
"""Maximum number of requests that may wait on a connection for the answers to earlier ones."""
PIECES: Final = 4096
PIECE_BYTES: Final = 64
"""A body of more pieces is refused if they are smaller than this on average: each costs time of its own."""
LINGER_S: Final = 2.0
"""How long the client may take to read the last answer. What it still sends is dropped: if it were left unread, the
kernel would reset the connection, and the client might lose the answer."""
_HOST: Final = re.compile(rb"(?:\[[\w.~:%-]+\]|(?:[\w.~!$&'()*+,;=-]|%[\dA-Fa-f]{2})*)(?::\d*)?")
"""A name or an address, which may be empty, and a port (RFC 3986, section 3.2)."""
_NO_PATH: Final = re.compile(rb"\Ahttps?://[^/?#]+(?=[?#]|\Z)", re.IGNORECASE)
"""The beginning of an absolute URL whose path is empty, which means `/`. Proxies are asked for such URLs."""
_OFFER: Final = (b"upgrade", b"connection")
_VERSIONS: Final = ("1.0", "1.1")
_STILL_THERE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.1, 12.8
"""Seconds between two looks whether a client that sends nothing more is still there; each is twice the one before."""


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
        self._in_head = False
        """Whether a head has begun and is not complete."""
        self._pieces = 0
        """Pieces and trailers of the body."""
        self._body_bytes = 0
        self._answered: Any = None
        """The request that is being answered, or was the last one."""
        self._half_closed = False
        """Whether the client sends nothing more."""
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

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that is being answered. uvicorn (0.54) ends the newest one, which may wait behind it."""
        self._leave_answered()
        super().connection_lost(exc)

    def _leave_answered(self) -> None:
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what was asked for, although the client sends nothing more. Returns whether the connection stays open.

        A client may close its half of a connection and wait for the answer (uvicorn's issue 1264; `nc -N`). uvicorn
        (0.54) takes all such clients for gone. One over TLS is gone: TLS has no half.
        """
        is_answered = self.cycle is None or (self.cycle.response_complete and not self.pipeline)
        is_cut = self._end is None and (self._in_head or (self._in_body and not is_answered))
        if not self.transport.can_write_eof() or (is_answered and not is_cut):
            return False
        if not self._half_closed:
            self._half_closed = True
            if is_cut:
                said = "The connection ended inside a request; send as many bytes as its header announces."
                self._wrong = MalformedRequestError(said)
                self._refuse(self._wrong)
            elif self._end is None:
                self.cycle.keep_alive = False  # of the newest request
            self._look_again(_FIRST_LOOK_S)
        return not self.transport.is_closing()

    def _look_again(self, wait_s: float) -> None:
        self.loop.call_later(wait_s, self._look_for_client, wait_s)

    def _look_for_client(self, waited_s: float) -> None:
        """Send a client that sends nothing more a sign of life. If it has left, its kernel answers with a reset, and
        the second sign fails, which cancels the request.

        Pieces of an answer are such signs, too. HTTP/1.0 knows none: its clients are taken for gone after 1.5 s.
        """
        if self.transport.is_closing():
            return
        one = self._answered
        if one is not None and not one.response_started:
            if one.scope["http_version"] != "1.0":
                self.transport.write(_STILL_THERE)
            elif waited_s > 0.5:
                self.transport.abort()
                return
        self._look_again(min(2 * waited_s, _LONGEST_LOOK_S))

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Note the begin of a head."""
        self._in_head = True
        super().on_message_begin()

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
        self._in_head = False
        if not self.url.startswith(b"/"):
            self.url = _NO_PATH.sub(rb"\g<0>/", self.url, 1)
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
        is_older = self.parser.get_http_version() == "1.0"
        self.expect_100_continue &= not is_older  # RFC 9110, section 10.1.1
        super().on_headers_complete()
        if self.pipeline and sum(len(one.body) for one, _ in self.pipeline) <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # uvicorn stops, and does not notice then that the client leaves
        if is_older or self.expect_100_continue:
            self.cycle.send = partial(_send, self.cycle, self.cycle.send, is_older)  # type: ignore[method-assign]
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
        hosts = [value.strip() for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            return MalformedRequestError("The header names several hosts; send one line `host`.")
        if hosts and not _HOST.fullmatch(hosts[0]):
            return MalformedRequestError("The line `host` is no name or address with an optional port; correct it.")
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
        why = "its target is no URL" if isinstance(error.__context__, httptools.HttpParserInvalidURLError) else error
        said = f"The gateway cannot read this as a request of HTTP/1.1: {why}."
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
        if self.transport.can_write_eof() and not self._half_closed:
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()


async def _send(cycle: Any, send: Any, is_older: bool, message: Message) -> None:
    """Send a message of an answer.

    HTTP/1.0 knows no chunks: a body of unknown length ends with the connection. An answer that comes before a body was
    asked for (100 Continue) also ends it: a proxy that then does not send this body would see its next request taken
    for it. uvicorn (0.54) sends chunks, and waits for the body.
    """
    if message["type"] == "http.response.start":
        cycle.keep_alive &= not (cycle.waiting_for_100_continue and cycle.more_body)
        if is_older and not any(name.lower() == b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    elif is_older and not cycle.expected_content_length:
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)
