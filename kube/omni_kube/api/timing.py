"""Time: the API server's clock, the rate limit of calls to it, and pauses after failures."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


class ServerClock:
    """A clock set by the Date header of responses.

    From the first response on, it is never ahead of the server, and is behind it by at most a second and the latency of
    a response.
    """

    def __init__(self) -> None:
        self._header = ""
        self._date: datetime | None = None
        self._updated = 0.0

    def update(self, header: str, monotonic: float) -> None:
        """Set the clock by the Date header of a response ("" if it has none). A malformed date is ignored."""
        # A date has no fractions of a second. So the first response with a date is the most precise one.
        if not header or header == self._header:
            return
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return
        self._header, self._updated = header, monotonic
        self._date = date if date.tzinfo else date.replace(tzinfo=UTC)

    def now(self, monotonic: float) -> datetime:
        """Returns the server's time; the local time until the first response."""
        if self._date is None:
            return datetime.now(UTC)
        return self._date + timedelta(seconds=monotonic - self._updated)


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
