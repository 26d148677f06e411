"""uvicorn's WebSocket protocol, made strict and bounded, and which handshakes reach it.

Only a complete handshake for a path of SOCKETS leaves HTTP/1.1, and only as the first request that waits on its
connection. From then on nothing on this connection is read as a request, whatever the answer to the handshake is. So a
proxy that takes later bytes for requests gets no answers to them (request smuggling).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omni_gateway.guard.middleware import normalize_path
from omni_gateway.guard.sessions import REALTIME

SOCKETS: Final = (REALTIME,)
MESSAGE_BYTES: Final = 16 << 20
"""Maximum size of one message. OpenAI's clients send up to 15 MiB of audio in one event."""
ARRIVING_BYTES: Final = 64 << 20
"""Maximum size of all messages together that have not arrived completely, besides SMALL_BYTES of each."""
SMALL_BYTES: Final = 64 << 10
HANDSHAKE_S: Final = 30.0
"""How long the answer to a handshake may take, in seconds. It waits for the description of the pipeline."""
PING_S: Final = 20.0
"""How often a client is pinged, and how long it may take to answer, in seconds."""
_KEY_BYTES: Final = 16
_FRAMED: Final = (b"content-length", b"transfer-encoding", b"expect")


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
        self._arriving = arriving
        self._counted = 0
        self._pending = 0
        """Bytes since the last complete message."""

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
        self._pending += len(data)
        self._count(max(0, self._pending - SMALL_BYTES))
        if self._counted and self._arriving.total > ARRIVING_BYTES:
            self.transport.abort()
            return
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        """Pass on a complete message."""
        self._pending = 0
        self._count(0)
        super().send_receive_event_to_app()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a connection that has ended."""
        self._count(0)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Called when the server stops: an open session ends by itself, at the border of a turn."""
        if not self.handshake_complete:
            super().shutdown()

    def _count(self, size: int) -> None:
        self._arriving.total += size - self._counted
        self._counted = size
