"""Queues the rows of the engine's steps until the downstream call sends them. `Pacing` decides when they are due."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from omni_proto.stage.v1 import events_pb2
from omni_stage.exchange import Array
from omni_stage.vllm_adapter.scheduling.playback import FIRST_OUTPUTS

EARLY_STEPS: Final = FIRST_OUTPUTS
"""Number of steps, from a request's first one, whose rows do not wait: the step with the prompt, and the next eight.
The number is higher for a component whose first audio needs more steps (KnowsFirstAudio)."""
ROW_PLAYS_S: Final = 0.02
"""Seconds of audio per row, at 50 codec tokens a second: the highest rate of a published talker. Used for components
that do not know their own (KnowsPace)."""
LONGEST_S: Final = 2 * ROW_PLAYS_S
"""Longest wait of a row on a Full edge. On a Stream edge it is the time that two rows play."""
MANY_CALLS: Final = 64
"""With so many open calls, or more, rows may wait longest; with fewer, the longest wait is in proportion."""
MAX_STEPS: Final = 64
"""Maximum number of steps in one message. At one row of 7 KiB per step, they fill less than half of the largest
message."""
QUIET_S: Final = 30.0
"""Longest time between two messages of an upstream stage, and after the last data of a client. A stage that has no rows
yet says every ALIVE_S seconds that they will follow, so only a caller that is no stage, or is gone, exceeds this."""
ALIVE_S: Final = QUIET_S / 6


@dataclass(slots=True)
class Pacing:
    """Decides how long rows may wait to be sent together with later rows. Pure; the clock is passed in.

    A message costs about as much as the text of a token, whether the message carries one row or ten. So rows wait for
    the rows of the next steps, but only if this saves time and causes no audible delay:

    - The rows of a request's first steps are sent immediately, because speech cannot begin without them.
    - Later rows wait no longer than the downstream stage can work on the rows that it has. A talker reads one row for
      each codec token, so each row lasts for the playing time of one token. Rows of a stage that writes faster than
      that may wait; rows of a slower stage never wait.
    - The more calls are open, the longer rows may wait. A single request has the processor to itself, so waiting would
      save it nothing.
    """

    streamed: bool = True
    """Whether the downstream stage reads rows before the request ends (a Stream edge)."""
    early_steps: int = EARLY_STEPS
    """Number of first steps whose rows do not wait."""
    row_plays_s: float = ROW_PLAYS_S
    """Seconds of audio per row."""
    _steps: int = 0
    _rows: int = 0
    _began: float = 0.0
    _last: float = 0.0
    _due: float = math.inf
    """When the waiting rows must be sent."""

    @property
    def early(self) -> bool:
        """Whether the latest step was one of the first `early_steps`, on a Stream edge."""
        return self.streamed and self._steps <= self.early_steps

    def add(self, rows: int, now: float, open_calls: int) -> float:
        """Returns when the waiting rows, including those of this step, must be sent; `now` means immediately.

        `rows`: number of rows of the step. `now`: seconds of any monotonic clock. A timer between two steps would wake
        the process for one call only, but right after a step the process is awake for all calls. So rows are also sent
        now if they would be due before the next step. The time to the next step is expected to equal the time since the
        previous one.
        """
        self._steps += 1
        gap, self._last = now - self._last, now
        if self._steps == 1:
            self._began = now
            return now
        self._rows += rows
        self._due = min(self._due, now + self._longest_s(now, open_calls))
        return now if now + gap > self._due else self._due

    def sent(self) -> None:
        """Record that the waiting rows are sent now."""
        self._due = math.inf

    def _longest_s(self, now: float, open_calls: int) -> float:
        if not self.streamed:
            return LONGEST_S
        if self.early:
            return 0.0
        ahead_s = (self._rows - 1) * self.row_plays_s - (now - self._began)
        return max(0.0, min(2 * self.row_plays_s * min(1.0, open_calls / MANY_CALLS), ahead_s))


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

    def __init__(self, calls: OpenCalls, pacing: Pacing) -> None:
        """`pacing`: a new one, for this call alone."""
        self._calls = calls
        self._pacing = pacing
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
        if due <= now or len(self._steps) >= MAX_STEPS:
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
        """Returns the queued steps, but at most the oldest MAX_STEPS. Call this when rows or the end are due."""
        self.close()
        self._pacing.sent()
        steps, self._steps = self._steps, []
        if len(steps) > MAX_STEPS:
            steps, self._steps = steps[:MAX_STEPS], steps[MAX_STEPS:]
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
