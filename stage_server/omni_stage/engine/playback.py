"""When the listener of a stream hears silence next, by which the windows of a diffusion stage are ordered. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_AHEAD_S: Final = 1e6
"""By how much a first window is due before now: longer than anything plays, so that first windows come before all
others, and among themselves in the order in which they came."""


@dataclass(slots=True)
class Playback:
    """One listener, who plays audio from the first window on, and waits in silence when there is none.

    Times are seconds of any clock that does not go back.
    """

    runs_out: float | None = None
    """When the audio that was sent is played; None before the first."""

    def due(self, now: float) -> float:
        """Returns when the next window has to be there. A smaller one is computed earlier."""
        return now - FIRST_AHEAD_S if self.runs_out is None else self.runs_out

    def add(self, now: float, seconds: float) -> None:
        """So much audio was sent. After a gap the player resumes now: the silent time is not made up for.

        So when nobody can be served in time, streams take turns, instead of the latest one taking all.
        """
        begin = now if self.runs_out is None else max(self.runs_out, now)
        self.runs_out = begin + seconds
