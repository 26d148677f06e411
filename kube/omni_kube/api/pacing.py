"""Rate limit of calls to the API server, and pauses after failures."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass


class RateLimiter:
    """Allows `rate` calls a second on average, and bursts of `burst` calls; calls above the rate wait."""

    def __init__(self, rate: float, burst: float) -> None:
        self._interval_s = 1.0 / rate
        self._ahead_s = (burst - 1.0) / rate
        self._next = float("-inf")  # when the next call would be due if calls were spaced evenly

    def reserve(self, now: float) -> float:
        """Reserve the next call. Returns the seconds that it must wait."""
        self._next = max(self._next, now - self._ahead_s)
        wait = max(0.0, self._next - now)
        self._next += self._interval_s
        return wait

    async def acquire(self) -> None:
        """Wait until the next call is allowed."""
        wait = self.reserve(asyncio.get_running_loop().time())
        if wait > 0:
            await asyncio.sleep(wait)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from first_s up to longest_s, each shortened by up to a quarter at random."""

    first_s: float = 0.25
    longest_s: float = 15.0

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after that many failures in a row (from 1)."""
        # The exponent is bounded: 2.0**1100 overflows.
        longest = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return longest * random.uniform(0.75, 1.0)  # noqa: S311
