"""Keys to reconcile: each at most once waiting and once in work, with a collecting pause and growing pauses on failure.

Level-triggered: a key says that something about a pipeline may have changed, never what. A key that is added while in
work is worked on once more afterwards.

Fair by group (a tenant, say): those with ready keys take turns, and none has all workers, so whoever has thousands of
keys makes them wait, and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from omni_kube.pacing import Backoff

Key = TypeVar("Key", bound=Hashable)

SHORTEST_PAUSE_S = 1.0
"""Least pause after a failure when something new about the key comes."""


_NONE = object()


@dataclass(frozen=True, slots=True)
class _Timer:
    """When a key gets ready. Handles do not say: uvloop's call_at gives a plain one when it is due at once."""

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
        most_of_group: int | None = None,
    ) -> None:
        """most_of_group: keys of a group that may be in work at a time."""
        self._debounce_s = debounce_s
        self._backoff = backoff or Backoff()
        self._group_of = group_of
        self._most_of_group = most_of_group
        # Groups in the order of their turns, keys of each in order; value: since when.
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
        """Keys that wait, those on a timer included."""
        return sum(map(len, self._ready.values())) + len(self._timers)

    @property
    def busy(self) -> int:
        """Keys in work."""
        return len(self._busy)

    def add(self, key: Key, delay_s: float | None = None) -> None:
        """Have key worked on, after delay_s (default: the collecting pause), or sooner if it waits for less already."""
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
            self._progress = now  # nothing was owed before
        self._ready.setdefault(self._group_of(key), {})[key] = now
        self._wakeup.set()

    async def get(self) -> Key:
        """The next key, now in work: done() or retry() must follow."""
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
            if self._most_of_group is None or self._busy_of_group[group] < self._most_of_group:
                return group
        return _NONE

    def done(self, key: Key, again_after_s: float | None = None) -> None:
        """Key was worked on well; reconcile it again after again_after_s, if given, even if nothing happens."""
        self._failures.pop(key, None)
        self._release(key, again_after_s)

    def retry(self, key: Key, at_least_s: float = 0.0, *, progressed: bool = False) -> float:
        """Key failed: again after its next pause, or at_least_s if that is longer. Returns the pause in seconds.

        One that progressed begins again with the shortest pause.

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
        group = self._group_of(key)
        keys = self._ready.get(group, {})
        keys.pop(key, None)
        if not keys:
            self._ready.pop(group, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.handle.cancel()

    def longest_due_s(self) -> float:
        """For how long the oldest key has been in work, or ready with nobody taking it; 0 if there is none."""
        ready = [next(iter(keys.values())) for keys in self._ready.values()]
        since = min((*self._busy.values(), *ready), default=None)
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def stuck_s(self) -> float:
        """For how long nothing has come of the work that there is: a key in work, or ready keys and none done.

        However many keys wait, and however long: a backlog that shrinks is no fault.
        """
        now = asyncio.get_running_loop().time()
        busy = max((now - since for since in self._busy.values()), default=0.0)
        return max(busy, now - self._progress if self._ready else 0.0)

    def begin(self) -> None:
        """Work begins only now, as with leadership: what has waited before is nobody's fault."""
        self._progress = asyncio.get_running_loop().time()

    def _release(self, key: Key, delay_s: float | None) -> None:
        del self._busy[key]
        group = self._group_of(key)
        self._busy_of_group[group] -= 1
        if not self._busy_of_group[group]:
            del self._busy_of_group[group]
        self._progress = asyncio.get_running_loop().time()
        self._wakeup.set()  # its group may have been full
        if delay_s is not None:
            self.add(key, delay_s)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
