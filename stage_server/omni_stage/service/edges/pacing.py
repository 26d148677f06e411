"""How long rows may wait to be sent together with later ones. Pure; the clock is passed in.

Sending a message costs about as much as sending the text of a token, whether it carries one row or ten. So rows wait
for the rows of the next steps, but only where that saves time and causes no audible delay:

- The rows of a request's first steps are sent immediately, because speech cannot begin without them.
- Later rows wait no longer than the reader's buffer lasts. A talker reads one row per code, so each row buffers the
  playing time of a code. A stage that writes faster than that is ahead and may wait; a slower one never waits.
- The more calls are open, the longer rows may wait. A single request has the processor to itself, and its rows would
  gain nothing by waiting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from omni_stage.scheduling.step_order import FIRST_OUTPUTS

EARLY_STEPS: Final = FIRST_OUTPUTS
"""Number of first steps whose rows do not wait: the step with the prompt, and the eight after it. It is more where a
component knows that the stage below needs more for its first audio (KnowsFirstAudio)."""
LONGEST_S: Final = 0.04
A_CALL_S: Final = 0.000_625
"""Longest wait per open call: with 64 open calls it reaches LONGEST_S."""
ROW_PLAYS_S: Final = 0.02
"""Seconds of audio per row, at 50 codes a second: the highest rate of a published talker."""
MOST_STEPS: Final = 64
"""Maximum number of steps in one message. At 7 KiB a row they fill less than half of the largest chunk."""


@dataclass(slots=True)
class Pacing:
    """Decides when the rows of one call are sent."""

    heard: bool = True
    """Whether the downstream stage reads rows before the request ends (a Stream edge)."""
    early_steps: int = EARLY_STEPS
    """Number of first steps whose rows do not wait."""
    _steps: int = 0
    _rows: int = 0
    _began: float = 0.0
    _last: float = 0.0
    _due: float = math.inf
    """When the waiting rows must be sent."""

    @property
    def early(self) -> bool:
        """Whether the latest step was one of the first `early_steps`, without whose rows speech cannot begin."""
        return self.heard and self._steps <= self.early_steps

    def add(self, rows: int, now: float, open_calls: int) -> float:
        """Returns when the waiting rows, this step's included, must be sent; `now` means immediately.

        `rows`: number of rows of the step; `now`: seconds of any monotonic clock. After a step, the rows of all
        requests of its batch are sent together. A timer between steps would wake the process for one call only. So rows
        are also sent now if they would be due before the next step, which is expected after the same gap as this one.
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
        if not self.heard:
            return LONGEST_S
        if self.early:
            return 0.0
        ahead_s = self._rows * ROW_PLAYS_S - (now - self._began) - ROW_PLAYS_S
        return max(0.0, min(LONGEST_S, open_calls * A_CALL_S, ahead_s))
