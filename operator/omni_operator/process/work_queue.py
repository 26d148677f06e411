"""Queue of keys to reconcile. Each key waits at most once, and at most one worker processes it. A key that a
worker processes is in work.

Keys are debounced, and a key that fails is retried with growing pauses. The queue is level-triggered: a key says that
something about a pipeline may have changed, and does not say what. A key that is added while in work is processed once
more.

The queue is fair between groups of keys (e.g. tenants): groups with ready keys are served round-robin, and a group may
have at most max_per_group keys in work. So a group with thousands of keys delays only its own keys.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from omni_kube.api.timing import Backoff

Key = TypeVar("Key", bound=Hashable)

SHORTEST_PAUSE_S = 1.0
"""A longer pause after a failure is shortened to this when a new event for the key arrives."""


_NONE = object()


@dataclass(frozen=True, slots=True)
class _Timer:
    """When a key becomes ready. Stored, because uvloop's call_at may return a handle without that time."""

    due: float
    handle: asyncio.Handle


class WorkQueue(Generic[Key]):
    """A deduplicating queue for one event loop."""

    def __init__(
        self,
        *,
        debounce_s: float = 0.05,
        backoff: Backoff | None = None,
        group_of: Callable[[Key], Hashable] = lambda key: None,
        max_per_group: int | None = None,
    ) -> None:
        """max_per_group: how many keys of a group may be in work at the same time; None: no limit."""
        self._debounce_s = debounce_s
        self._backoff = backoff or Backoff()
        self._group_of = group_of
        self._max_per_group = max_per_group
        # Groups in round-robin order, and the keys of each in order; the value is when the key became ready.
        self._ready: dict[Hashable, dict[Key, float]] = {}
        self._busy: dict[Key, float] = {}
        self._busy_of_group: Counter[Hashable] = Counter()
        self._progress = float("-inf")
        self._again: set[Key] = set()
        self._timers: dict[Key, _Timer] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        """Returns the number of waiting keys, including those on a timer."""
        return sum(map(len, self._ready.values())) + len(self._timers)

    @property
    def busy(self) -> int:
        """Number of keys in work."""
        return len(self._busy)

    def add(self, key: Key, delay_s: float | None = None) -> None:
        """Queue key, ready after delay_s (default: the debounce time), or earlier if it is already due earlier.

        After a failure, it is not ready before the time that `retry` has set.
        """
        if key in self._busy:
            self._again.add(key)
            return
        if key in self._ready.get(self._group_of(key), ()):
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + (self._debounce_s if delay_s is None else delay_s), self._not_before.get(key, 0.0))
        timer = self._timers.get(key)
        if timer is not None:
            if timer.due <= due:
                return
            timer.handle.cancel()
        self._timers[key] = _Timer(due, loop.call_at(due, self._fire, key))

    def _fire(self, key: Key) -> None:
        del self._timers[key]
        self._not_before.pop(key, None)
        now = asyncio.get_running_loop().time()
        if not self._ready and not self._busy:
            self._progress = now  # no key was due before
        self._ready.setdefault(self._group_of(key), {})[key] = now
        self._wakeup.set()

    async def get(self) -> Key:
        """Wait for the next key and return it, now in work. The caller must call done() or retry() afterwards."""
        while (group := self._next_group()) is _NONE:
            self._wakeup.clear()
            await self._wakeup.wait()
        keys = self._ready.pop(group)
        key = next(iter(keys))
        del keys[key]
        if keys:
            self._ready[group] = keys  # behind the others
        self._busy[key] = asyncio.get_running_loop().time()
        self._busy_of_group[group] += 1
        return key

    def _next_group(self) -> Hashable:
        for group in self._ready:
            if self._max_per_group is None or self._busy_of_group[group] < self._max_per_group:
                return group
        return _NONE

    def done(self, key: Key, again_after_s: float | None = None) -> None:
        """Mark key as processed. If again_after_s is given, queue it again after that time even without an event."""
        self._failures.pop(key, None)
        self._release(key, again_after_s)

    def retry(self, key: Key, at_least_s: float = 0.0, *, progressed: bool = False) -> float:
        """Retry a key that failed, after its next pause or at_least_s if that is longer. Returns the pause in seconds.

        If it progressed, its pauses start again with the shortest one.

        A new event for the key shortens a longer pause to SHORTEST_PAUSE_S, or at_least_s if that is longer, because
        the event may be the fix. It does not shorten the pause further, so that a key that always fails does not cause
        a busy loop.
        """
        failures = self._failures[key] = (0 if progressed else self._failures.get(key, 0)) + 1
        pause = max(self._backoff.pause(failures), at_least_s)
        self._not_before[key] = asyncio.get_running_loop().time() + max(min(pause, SHORTEST_PAUSE_S), at_least_s)
        self._release(key, pause)
        return pause

    def failures(self, key: Key) -> int:
        """Returns the number of consecutive failures of key."""
        return self._failures.get(key, 0)

    def forget(self, key: Key) -> None:
        """Remove a key that no longer exists, with its timers and failures."""
        self._failures.pop(key, None)
        self._again.discard(key)
        self._not_before.pop(key, None)
        group = self._group_of(key)
        keys = self._ready.get(group, {})
        keys.pop(key, None)
        if not keys:
            self._ready.pop(group, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.handle.cancel()

    def longest_due_s(self) -> float:
        """Returns how long the oldest key has been in work or ready, in seconds; 0 if there is none."""
        ready = [next(iter(keys.values())) for keys in self._ready.values()]
        since = min((*self._busy.values(), *ready), default=None)
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def stuck_s(self) -> float:
        """Returns how long the queue has made no progress, in seconds.

        This is the longest time that a key has been in work. If keys are ready, the time since a key was last completed
        counts too, and the longer of the two is returned. A backlog that shrinks is not a problem, however long it is.
        """
        now = asyncio.get_running_loop().time()
        busy = max((now - since for since in self._busy.values()), default=0.0)
        return max(busy, now - self._progress if self._ready else 0.0)

    def begin(self) -> None:
        """Measure stuck_s from now, because work begins only now (leadership was won)."""
        self._progress = asyncio.get_running_loop().time()

    def _release(self, key: Key, delay_s: float | None) -> None:
        del self._busy[key]
        group = self._group_of(key)
        self._busy_of_group[group] -= 1
        if not self._busy_of_group[group]:
            del self._busy_of_group[group]
        self._progress = asyncio.get_running_loop().time()
        self._wakeup.set()  # a worker may wait because the group had max_per_group keys in work
        if delay_s is not None:
            self.add(key, delay_s)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
