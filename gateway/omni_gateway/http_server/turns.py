"""Lets requests begin a few at a time, the clients in turn.

A request costs most at its beginning. A client that sends a thousand requests at once would fill the event loop with
their beginnings, and the next client, such as a probe, could not even connect meanwhile: connections are accepted in
their order, a few in each turn of the loop. So at most BURST requests begin in a turn. Use from one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST: Final = 16
"""Maximum number of requests that begin in one turn of the loop. A beginning takes about half a millisecond."""
WAITING: Final = 2048
"""Maximum number of requests that wait. If there are more, the client with the most loses its oldest."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits."""

    begin: Callable[[], None]
    drop: Callable[[], None]
    """Called instead, if others need its place."""


class Turns:
    """The requests that are about to begin, by client."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Waiting]] = {}
        """In the order in which the clients come next."""
        self._count = 0
        self._begun = 0
        """In this turn of the loop."""

    def __len__(self) -> int:
        return self._count

    def enter(self, client: str, request: Waiting) -> None:
        """Begin a request of this client, now if few others begin in this turn of the loop."""
        if self._begun < BURST and not self._count:
            self._begin(request)
            return
        if self._count == WAITING:
            largest = max(self._waiting, key=lambda client: len(self._waiting[client]))
            self._pop(largest).drop()
        self._waiting.setdefault(client, deque()).append(request)
        self._count += 1

    def _begin(self, request: Waiting) -> None:
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._next)
        self._begun += 1
        request.begin()

    def _next(self) -> None:
        """Begin a new turn of the loop."""
        self._begun = 0
        while self._count and self._begun < BURST:
            self._begin(self._pop(next(iter(self._waiting))))

    def _pop(self, client: str) -> Waiting:
        """Returns the oldest request of a client, whose next one then comes behind those of all others."""
        waiting = self._waiting.pop(client)
        first = waiting.popleft()
        self._count -= 1
        if waiting:
            self._waiting[client] = waiting
        return first
