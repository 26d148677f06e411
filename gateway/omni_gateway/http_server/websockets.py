"""uvicorn's WebSocket protocol, made strict and bounded, and which handshakes reach it.

A frame costs far more time than its bytes: a piece of 256 KiB may hold 40,000 of them. So pieces are parsed in slices,
at a limited rate of frames, and only as fast as the session takes messages and the client reads answers.

Only a complete handshake for a path of SOCKETS leaves HTTP/1.1, and only as the first request that waits on its
connection. From then on nothing on this connection is read as a request, whatever the answer to the handshake is. So a
proxy that takes later bytes for requests gets no answers to them (request smuggling).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from omni_gateway.guard.middleware import normalize_path
from omni_gateway.guard.sessions import REALTIME
from omni_proto.runtime.limits import TokenBucket

SOCKETS: Final = (REALTIME,)
MESSAGE_BYTES: Final = 16 << 20
"""Maximum size of one message. OpenAI's clients send up to 15 MiB of audio in one event."""
ARRIVING_BYTES: Final = 64 << 20
"""Maximum size of all messages together that have not arrived completely, besides SMALL_BYTES of each."""
SMALL_BYTES: Final = 64 << 10
FRAME_BYTES: Final = 128
"""Memory of a fragment besides its bytes."""
SLICE_BYTES: Final = 2 << 10
"""What is parsed at once: at most 340 frames."""
FRAMES, FRAMES_PER_S = 1000, 400
"""Frames of one connection at once, and per second. Audio in pieces of 20 ms takes 50 frames per second."""
HANDSHAKE_S: Final = 30.0
"""How long the answer to a handshake may take, in seconds. It waits for the description of the pipeline."""
PING_S: Final = 20.0
"""How often a client is pinged, and how long it may take to answer, in seconds."""
_KEY_BYTES: Final = 16
_FRAMED: Final = (b"content-length", b"transfer-encoding", b"expect")


_log = logging.getLogger("uvicorn.error.websockets")
# Lines about each handshake have its head, which may hold a key. An error for text that is not UTF-8 is the client's.
_log.setLevel(logging.WARNING)
_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError)))


def is_handshake(method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Returns whether a head is a handshake for one of SOCKETS (RFC 6455, section 4.2.1). A head with a body, or with
    one of the handshake's lines twice, is none."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value.strip())
    path = normalize_path(target.partition(b"?")[0].decode("latin-1"))
    return (
        method == b"GET"
        and version == "1.1"
        and path in SOCKETS
        and not any(name in found for name in _FRAMED)
        and [one.lower() for one in found.get(b"upgrade", ())] == [b"websocket"]
        and b"upgrade" in [one.strip().lower() for line in found.get(b"connection", ()) for one in line.split(b",")]
        and found.get(b"sec-websocket-version") == [b"13"]
        and _is_key(found.get(b"sec-websocket-key", ()))
    )


def _is_key(lines: Sequence[bytes]) -> bool:
    try:
        return len(lines) == 1 and len(base64.b64decode(lines[0], validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


class Arriving:
    """Bytes of messages that have not arrived completely, of all connections. Use from one event loop."""

    def __init__(self) -> None:
        self.total = 0


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that reads nothing before its handshake is answered, and whose unread bytes are limited."""

    def __init__(self, *args: Any, arriving: Arriving, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = self.conn.logger = _log
        self._arriving = arriving
        self._counted = 0
        self._pending = 0
        """Bytes since the last complete message."""
        self._unread = bytearray()
        """What has arrived and is not parsed."""
        self._frames = TokenBucket(FRAMES, self.loop.time())
        self._rest: asyncio.TimerHandle | None = None
        """Set until further frames may be parsed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the handshake."""
        super().connection_made(transport)
        if self.client is not None:  # see BoundedHttp
            self.client = (self.client[0].removeprefix("::ffff:"), self.client[1])
        self.loop.call_later(HANDSHAKE_S, self._end_handshake)

    def _end_handshake(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes. A client that sends before the answer to its handshake is cut (RFC 6455, section 4.1):
        its frames would be answered before the handshake is."""
        if self.handshake_initiated and not self.handshake_complete:
            self.transport.abort()
            return
        self._unread += data
        self._parse()

    def _parse(self) -> None:
        """Parse what has arrived, as far as that is allowed now. Read more once nothing is left."""
        while self._unread and not self._must_wait():
            piece = bytes(self._unread[:SLICE_BYTES])
            del self._unread[:SLICE_BYTES]
            self._pending += len(piece)
            self._count(max(0, self._pending - SMALL_BYTES))
            if self._counted and self._arriving.total > ARRIVING_BYTES:
                self.transport.abort()
                return
            self._frames.refill(FRAMES_PER_S, FRAMES, self.loop.time())
            level = self._frames.level
            super().data_received(piece)
            if self._frames.level < level:  # others have their turn
                self._rest = self.loop.call_later(self._frames.wait_s(0, FRAMES_PER_S), self._continue_reading)
        if self.transport.is_closing():
            return
        if self._unread:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _must_wait(self) -> bool:
        return self._rest is not None or self.read_paused or not self.writable.is_set() or self.transport.is_closing()

    def _continue_reading(self) -> None:
        self._rest = None
        self._parse()

    async def receive(self) -> Any:
        """Returns the next message. Parse further ones once the session has taken all."""
        message = await self.queue.get()
        if not self.queue.empty():
            await asyncio.sleep(0)  # others have their turn between two messages
        else:
            self.read_paused = False
            self._parse()
        return message

    def resume_writing(self) -> None:
        """Called by the transport when the client has read answers."""
        super().resume_writing()
        self._parse()

    def handle_text(self, event: Frame) -> None:
        """Count a frame, and keep it or pass it on."""
        self._frames.level -= 1
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Count a frame, and keep it or pass it on."""
        self._frames.level -= 1
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """Count a fragment, and keep it or pass the message on."""
        self._frames.level -= 1
        self._pending += FRAME_BYTES
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Count a frame, and answer it."""
        self._frames.level -= 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Count a frame."""
        self._frames.level -= 1
        super().handle_pong(event)

    def send_receive_event_to_app(self) -> None:
        """Pass on a complete message."""
        self._pending = 0
        self._count(0)
        super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a connection that has ended."""
        self._count(0)
        if self._rest is not None:
            self._rest.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Called when the server stops: an open session ends by itself, at the border of a turn."""
        if not self.handshake_complete:
            super().shutdown()

    def _count(self, size: int) -> None:
        self._arriving.total += size - self._counted
        self._counted = size
