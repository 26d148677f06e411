"""Computes when the listener of a stream will run out of audio: the stream's due time. Pure.

Within a priority, the schedulers order diffusion windows and autoregressive requests by due time, the earliest first.
The due time of a waiting stream does not change, and the due times of new streams grow with the clock. So every waiting
stream eventually becomes the first one, however many streams begin after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_AHEAD_S: Final = 5.0
"""A stream's first audio is due this many seconds before the stream reached the engine. So first audio is served before
all streams that still have audio to play, and after streams that have been silent for longer than this. The first
windows of several streams are served in the order in which the streams reached the engine."""


@dataclass(slots=True)
class Playback:
    """One listener, who plays audio from the first window on, and hears silence when no audio is left to play.

    Times are seconds of any monotonic clock.
    """

    runs_out: float | None = None
    """When the audio that was sent has been played; None before the first audio."""

    def due(self, now: float) -> float:
        """Returns when the next window must be ready. Streams with an earlier time are served first."""
        return now - FIRST_AHEAD_S if self.runs_out is None else self.runs_out

    def add(self, now: float, seconds: float) -> None:
        """Record that `seconds` of audio were sent. If playback had run out before, it resumes `now`.

        So a stream's next due time is at least `now` plus `seconds`, however long its listener heard silence. A stage
        that is too slow for its streams therefore serves all of them in turn, not only the stream that is latest.
        """
        begin = now if self.runs_out is None else max(self.runs_out, now)
        self.runs_out = begin + seconds
