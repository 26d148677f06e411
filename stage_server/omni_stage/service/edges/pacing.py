"""When rows that wait for company must go. Pure; the clock is passed in.

A message costs the sender about as much as the text of a token, whether it carries one row or ten. So rows wait for
those of the next steps, but only where that is worth it and nobody hears it:

- the first steps of a request go at once: speech cannot begin without them;
- later ones wait no longer than what the reader has in hand. A talker reads a row for each code, and the longest that
  codes play is what a row is worth: a stage that writes faster than that is ahead, and one that is slower never waits;
- the more calls are open, the longer: one request alone has the processor for itself, and its rows gain nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

EARLY_STEPS: Final = 9
"""The prompt's rows, and the first eight after it."""
LONGEST_S: Final = 0.04
A_CALL_S: Final = 0.000_625
"""Wait for each open call: 64 of them reach the longest."""
ROW_PLAYS_S: Final = 0.02
"""Seconds of audio of a row: at 50 codes a second, the most that a published talker writes."""
MOST_STEPS: Final = 64
"""Steps in one message: at 7 KiB a row less than half of the size that a chunk may have."""


@dataclass(slots=True)
class Pacing:
    """The clock of one call's rows."""

    heard: bool = True
    """Whether the stage below reads before the end."""
    _steps: int = 0
    _rows: int = 0
    _began: float = 0.0
    _last: float = 0.0
    _due: float = math.inf
    """When what waits must go."""

    def add(self, rows: int, now: float, open_calls: int) -> float:
        """Returns when what waits, this step's rows included, must go; `now` for at once.

        `rows` of the step; `now` of any clock in seconds. Rows leave with a step, together with those of the other
        requests of its batch, rather than between steps, where each would wake the process by itself: at once also
        means that the next step, which is as far away as the last one, would come too late.
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
        """Nothing waits any more."""
        self._due = math.inf

    def _longest_s(self, now: float, open_calls: int) -> float:
        if not self.heard:
            return LONGEST_S
        if self._steps <= EARLY_STEPS:
            return 0.0
        ahead_s = self._rows * ROW_PLAYS_S - (now - self._began) - ROW_PLAYS_S
        return max(0.0, min(LONGEST_S, open_calls * A_CALL_S, ahead_s))
