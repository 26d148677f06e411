"""Keys to reconcile: each at most once waiting and once in work, with a collecting pause and growing pauses on failure.

Level-triggered: a key says that something about a pipeline may have changed, never what. A key that is added while in
work is worked on once more afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SHORTEST_PAUSE_S = 1.0
"""Least pause after a failure when something new about the key comes."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from first_s up to longest_s, each shortened by up to a quarter at random."""

    first_s: float = 0.25
    longest_s: float = 15.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row (from 1)."""
        # The exponent is bounded: 2**1100 is no float.
        longest = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return longest * random.uniform(0.75, 1.0)  # noqa: S311


class WorkQueue(Generic[Key]):
    """A deduplicating queue for one event loop."""

    def __init__(self, *, debounce_s: float = 0.05, backoff: Backoff | None = None) -> None:
        self._debounce_s = debounce_s
        self._backoff = backoff or Backoff()
        self._ready: dict[Key, float] = {}  # in order; value: since when
        self._busy: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait, those on a timer included."""
        return len(self._ready) + len(self._timers)

    @property
    def busy(self) -> int:
        """Keys in work."""
        return len(self._busy)

    def add(self, key: Key, delay_s: float | None = None) -> None:
        """Have key worked on, after delay_s (default: the collecting pause), or sooner if it waits for less already."""
        if key in self._busy:
            self._again.add(key)
            return
        if key in self._ready:
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + (self._debounce_s if delay_s is None else delay_s), self._not_before.get(key, 0.0))
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._fire, key)

    def _fire(self, key: Key) -> None:
        del self._timers[key]
        self._not_before.pop(key, None)
        self._ready[key] = asyncio.get_running_loop().time()
        self._wakeup.set()

    async def get(self) -> Key:
        """The next key, now in work: done() or retry() must follow."""
        while not self._ready:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._busy[key] = asyncio.get_running_loop().time()
        return key

    def done(self, key: Key, again_after_s: float | None = None) -> None:
        """Key was worked on well; look at it again after again_after_s, if given, even if nothing happens."""
        self._failures.pop(key, None)
        self._release(key, again_after_s)

    def retry(self, key: Key, at_least_s: float = 0.0, *, progressed: bool = False) -> float:
        """Key failed: again after its next pause, or at_least_s if that is longer. Returns the pause in seconds.

        One that progressed begins anew with the shortest pause.

        Something new about the key shortens the pause, to a second or at_least_s: it may be what repairs it, but a key
        that fails on every try must not spin.
        """
        failures = self._failures[key] = (0 if progressed else self._failures.get(key, 0)) + 1
        pause = max(self._backoff.pause(failures), at_least_s)
        self._not_before[key] = asyncio.get_running_loop().time() + max(min(pause, SHORTEST_PAUSE_S), at_least_s)
        self._release(key, pause)
        return pause

    def failures(self, key: Key) -> int:
        """Failures of key in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: Key) -> None:
        """Drop what waits for key, and its failures: it is gone."""
        self._failures.pop(key, None)
        self._again.discard(key)
        self._not_before.pop(key, None)
        self._ready.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def longest_busy_s(self) -> float:
        """For how long the oldest key has been in work, or ready with nobody taking it; 0 if there is none."""
        since = [*self._busy.values(), *list(self._ready.values())[:1]]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    def _release(self, key: Key, delay_s: float | None) -> None:
        del self._busy[key]
        if delay_s is not None:
            self.add(key, delay_s)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
