"""Queues the rows of the engine's steps until the downstream call sends them. `Pacing` decides when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from omni_proto.stage.v1 import events_pb2
from omni_stage.exchange.arrays import Array
from omni_stage.service.edges.pacing import EARLY_STEPS, MOST_STEPS, Pacing

Taken = tuple[list[Mapping[str, Array]], set[str], "events_pb2.FinishReason | None"]
"""The rows of some steps, in order; the names of the tensors that end with these rows; and the finish reason if no rows
follow, else None."""


class OpenCalls(Protocol):
    """Reports how many calls are open."""

    @property
    def open_calls(self) -> int:
        """Number of calls that are open now."""
        ...


class Outbox:
    """The queued rows of one call. `put`, `end` and `take` never block; a single task calls `wait`."""

    def __init__(self, calls: OpenCalls, *, heard: bool, early_steps: int = EARLY_STEPS) -> None:
        """`heard`: whether the downstream stage reads rows before the request ends (a Stream edge).

        `early_steps`: number of steps, from the first one, whose rows do not wait.
        """
        self._calls = calls
        self._pacing = Pacing(heard, early_steps)
        self._loop = asyncio.get_running_loop()
        self._steps: list[Mapping[str, Array]] = []
        self._complete: set[str] = set()
        self._reason: events_pb2.FinishReason | None = None
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def put(self, tensors: Mapping[str, Array], complete: frozenset[str] = frozenset()) -> bool:
        """Queue the rows of a step. Returns whether they are among the first rows of a Stream edge, which are sent
        immediately.

        `complete`: tensors that end with these rows.
        """
        self._steps.append(tensors)
        self._complete |= complete
        now = self._loop.time()
        rows = max((array.shape[0] for array in tensors.values()), default=0)
        due = self._pacing.add(rows, now, self._calls.open_calls)
        if due <= now or len(self._steps) >= MOST_STEPS:
            self._due.set()
        elif self._timer is None:
            self._timer = self._loop.call_at(due, self._due.set)
        return self._pacing.early

    def end(self, reason: events_pb2.FinishReason) -> None:
        """Queue the end of the rows."""
        self._reason = reason
        self._due.set()

    @property
    def is_due(self) -> bool:
        """Whether rows, or the end, must be sent now."""
        return self._due.is_set()

    async def wait(self) -> None:
        """Wait until rows, or the end, are due."""
        await self._due.wait()

    def take(self) -> Taken:
        """Returns the queued steps, but at most the oldest MOST_STEPS. Call this when rows or the end are due."""
        self.close()
        self._pacing.sent()
        steps, self._steps = self._steps, []
        if len(steps) > MOST_STEPS:
            steps, self._steps = steps[:MOST_STEPS], steps[MOST_STEPS:]
            return steps, set(), None
        complete, self._complete = self._complete, set()
        if self._reason is None:
            self._due.clear()
        return steps, complete, self._reason

    def close(self) -> None:
        """Cancel the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
