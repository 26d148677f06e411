"""Lets requests begin one after another, the clients in turn.

A request costs most at its beginning. A client that sends a thousand requests at once would fill the event loop with
their beginnings, and the next client, such as a probe, could not even connect meanwhile: connections are accepted in
their order, a few in each turn of the loop. So one begins every PACE_S. Where a turn of the loop takes longer, because
answers stream, the next turn begins as many as are due: else a busy gateway would admit one request a turn. Use from
one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PACE_S: Final = 0.001
"""Seconds between two beginnings. A beginning takes half of that, and a whole request longer than that."""
BURST: Final = 8
"""Maximum number of requests that begin in one turn of the loop."""
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
        self._pacing = False
        self._last_s = 0.0
        """When the last ones began, by the loop's clock."""

    def __len__(self) -> int:
        return self._count

    def enter(self, client: str, request: Waiting) -> None:
        """Begin a request of this client, now if no other one has just begun."""
        if not self._pacing:
            self._pacing = True
            self._pace()
            request.begin()
            return
        if self._count == WAITING:
            largest = max(self._waiting, key=lambda client: len(self._waiting[client]))
            self._pop(largest).drop()
        self._waiting.setdefault(client, deque()).append(request)
        self._count += 1

    def _pace(self) -> float:
        """Returns the seconds since the last call, and arranges for the next ones."""
        loop = asyncio.get_running_loop()
        passed_s, self._last_s = loop.time() - self._last_s, loop.time()
        loop.call_later(PACE_S, self._next)
        return passed_s

    def _next(self) -> None:
        if not self._count:
            self._pacing = False
            return
        due = min(int(self._pace() / PACE_S), BURST, self._count)
        for _ in range(max(due, 1)):
            self._pop(next(iter(self._waiting))).begin()

    def _pop(self, client: str) -> Waiting:
        """Returns the oldest request of a client, whose next one then comes behind those of all others."""
        waiting = self._waiting.pop(client)
        first = waiting.popleft()
        self._count -= 1
        if waiting:
            self._waiting[client] = waiting
        return first
