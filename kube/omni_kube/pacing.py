"""The pace of calls to the API server."""

from __future__ import annotations

import asyncio


class RateLimiter:
    """At most `rate` calls a second on average, `burst` at once; who comes too early waits in line."""

    def __init__(self, rate: float, burst: float) -> None:
        self._interval_s = 1.0 / rate
        self._ahead_s = (burst - 1.0) / rate
        self._next = float("-inf")  # when the calls admitted so far would have been due at the even rate

    def reserve(self, now: float) -> float:
        """Seconds that the next call has to wait; it counts as made."""
        self._next = max(self._next, now - self._ahead_s)
        wait = max(0.0, self._next - now)
        self._next += self._interval_s
        return wait

    async def acquire(self) -> None:
        """Wait for the next call's turn."""
        wait = self.reserve(asyncio.get_running_loop().time())
        if wait > 0:
            await asyncio.sleep(wait)
