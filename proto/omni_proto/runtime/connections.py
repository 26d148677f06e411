"""Limits the TCP connections of an HTTP port: in total, per peer, and in time.

HTTP libraries wait for a request's header without a time limit. Here every connection has a maximum lifetime, after
which it is closed even if its request was not answered. If the port has too many connections, the oldest connection of
the peer with the most is closed, so that a peer that hoards connections cannot lock out the others.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final, TypeVar, cast

from omni_proto.runtime.limits import PeerTable

IN_ALL: Final = 256
"""Maximum connections of a port."""
PER_PEER: Final = 32
"""Maximum connections of a port from one address."""
LIFE_S: Final = 15.0
"""Maximum lifetime of a connection in seconds, whatever the request: longer than a scrape may take."""
BACKLOG: Final = 1024

Connection = TypeVar("Connection")


class ConnectionTable(PeerTable[Connection]):
    """The connections of a port, by peer."""

    def __init__(self, in_all: int = IN_ALL, per_peer: int = PER_PEER) -> None:
        super().__init__()
        self._in_all = in_all
        self._per_peer = per_peer

    def enter(self, peer: str, connection: Connection) -> Connection | None:
        """Add a connection. Returns the connection to close in its place, already removed from the table, or None."""
        self.add(peer, connection)
        if self.held_by(peer) > self._per_peer:
            loser = peer
        elif len(self) > self._in_all:
            loser = self.largest()
        else:
            return None
        victim = self.oldest_of(loser)
        self.remove(loser, victim)
        return victim


class BoundedConnections:
    """Protocol factory of a server: wraps each protocol that `factory` makes and enforces the limits."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        *,
        in_all: int = IN_ALL,
        per_peer: int = PER_PEER,
        life_s: float = LIFE_S,
    ) -> None:
        self._factory = factory
        self.table: ConnectionTable[_Bounded] = ConnectionTable(in_all, per_peer)
        self.life_s = life_s

    def __call__(self) -> asyncio.Protocol:
        """Returns the protocol of a new connection."""
        return _Bounded(self._factory(), self)


class _Bounded(asyncio.Protocol):
    def __init__(self, inner: asyncio.Protocol, bounds: BoundedConnections) -> None:
        self._inner = inner
        self._bounds = bounds
        self._peer = ""
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self._peer = str(address[0]) if address else ""
        self._inner.connection_made(transport)
        self._end = asyncio.get_running_loop().call_later(self._bounds.life_s, self.cut)
        victim = self._bounds.table.enter(self._peer, self)
        if victim is not None:
            victim.cut()

    def cut(self) -> None:
        """Close the connection immediately, even if data is in flight."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        self._bounds.table.remove(self._peer, self)
        self._transport = None
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


def explain_taken(error: OSError, host: str, port: int) -> str:
    """Returns why a port cannot be listened on, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {host}:{port}: port {port} is taken by another program; end that program "
            f"(ss -ltnp 'sport = :{port}' shows it), or choose another port"
        )
    return f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address or port"


def open_listener(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError.

    host "", "::" or "[::]" means every address, of IPv4 and, where available, IPv6.
    """
    host = host.strip("[]")
    if host not in ("", "::"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    # One socket for both address families: with port 0, two sockets would get two different ports.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=BACKLOG)
