"""When the listener of a stream will run out of audio. Pure.

Windows and autoregressive requests are ordered by that time.
The due time of a waiting stream does not change, and the due times of new streams grow with the clock. So every waiting
stream becomes the first one eventually, however many streams begin after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_AHEAD_S: Final = 5.0
"""How long before its request the first audio counts as due. It thus precedes all streams that are playing, but not
those that have been silent for longer than this. First windows are served in the order of their requests."""


@dataclass(slots=True)
class Playback:
    """One listener, who plays audio from the first window on, and hears silence when there is none.

    Times are seconds of any monotonic clock.
    """

    runs_out: float | None = None
    """When the audio that was sent has been played; None before the first audio."""

    def due(self, now: float) -> float:
        """Returns when the next window must be ready. Streams with an earlier time are served first."""
        return now - FIRST_AHEAD_S if self.runs_out is None else self.runs_out

    def add(self, now: float, seconds: float) -> None:
        """Record that `seconds` of audio were sent. After a gap playback resumes now: a gap is not made up for.

        So when no stream can be served in time, all are served in turn, instead of the latest one alone.
        """
        begin = now if self.runs_out is None else max(self.runs_out, now)
        self.runs_out = begin + seconds
