"""The calls in flight of a stage. A drain waits for them; they are ended together when the engine dies or is stuck, or
when the drain takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from omni_stage.errors import DrainingError, OmniStageError


@dataclass(eq=False, slots=True)
class _Entry:
    task: asyncio.Task[object]
    failure: OmniStageError | None = None


class InFlight:
    """Calls in flight on one event loop."""

    def __init__(self) -> None:
        self._entries: set[_Entry] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.refusing = False
        """Whether new calls are refused."""

    def __len__(self) -> int:
        return len(self._entries)

    def refuse(self) -> None:
        """Make `track` refuse new calls from now on: the stage drains, or its engine is stuck."""
        self.refusing = True

    @asynccontextmanager
    async def track(self) -> AsyncIterator[None]:
        """Count the current task's call. Raises DrainingError if calls are refused, or the error of `fail_all`."""
        if self.refusing:
            raise DrainingError("the stage is shutting down; another replica answers", retry_after_s=0.1)
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("track needs a running task")
        entry = _Entry(task)
        self._entries.add(entry)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if entry.failure is not None and task.uncancel() == 0:
                raise entry.failure from None
            raise
        finally:
            self._entries.discard(entry)
            if not self._entries:
                self._idle.set()

    def fail_all(self, error: OmniStageError) -> int:
        """End every call with `error`, except calls that an earlier fail_all ended. Returns how many it ended."""
        ended = 0
        for entry in self._entries:
            if entry.failure is None:
                entry.failure = error
                entry.task.cancel()
                ended += 1
        return ended

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is in flight. Returns False if calls are still in flight after timeout_s seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
