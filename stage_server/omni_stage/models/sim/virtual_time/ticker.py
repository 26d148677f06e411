"""Runs a virtual clock in real time: wakes up when a step ends, and delivers the step's results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Ticker:
    """Calls `advance` at the time that `next_time` returns. For use from one event loop."""

    def __init__(self, next_time: Callable[[], float | None], advance: Callable[[float], None]) -> None:
        self._next_time = next_time
        self._advance = advance
        self._handle: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def update(self) -> None:
        """Set the timer again. Call it after something was added to the clock or removed from it."""
        due = self._next_time()
        if due == self._due:
            return
        self.close()
        self._due = due
        if due is not None:
            # uvloop rounds timers to milliseconds. The additional half millisecond keeps timers from firing too early.
            delay = max(0.0, due - time.monotonic()) + 0.0005
            self._handle = asyncio.get_running_loop().call_later(delay, self._tick)

    def close(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._due = None

    def _tick(self) -> None:
        self._handle = self._due = None
        self._advance(time.monotonic())
        self.update()


class Mailbox(Generic[_T]):
    """The items made for one request. The request's reader takes all of them in one call."""

    def __init__(self) -> None:
        self._items: list[_T] = []
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, item: _T) -> None:
        """Add an item."""
        self._items.append(item)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Make the reader raise an error."""
        self._error = error
        self._changed.set()

    async def take(self) -> list[_T]:
        """Returns all items put since the last call; waits until there is one. Raises the error given to `fail`."""
        await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        items, self._items = self._items, []
        return items
