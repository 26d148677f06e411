"""Joins the windows of 30 seconds in which Whisper hears audio, by the timestamps that it writes. Pure.

Between the segments of a window the model writes a pair of timestamps, the end of one and the beginning of the next.
What follows the last pair may be a sentence that the window's end cuts. So it is dropped, and the next window begins at
the pair: nothing is lost, and nothing is heard twice. Same rules as transformers 5.19's `_retrieve_segment` and
openai-whisper.

Finds the silence of a file too, in which Whisper invents words, so that it hears only what may be speech. A frame is
quiet if its level is far below the loudest of the file, or below what a recording can hold. Only quiet that lasts is
skipped: the pauses of speech are the model's to hear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FRAME_S: Final = 0.02
_SMOOTHED_FRAMES: Final = 15
"""Frames over which the loudest level is measured, so that a click does not set it."""
_RELATIVE: Final = 0.01
"""Quiet is 40 dB below the loudest level."""
_FLOOR: Final = 3e-4
"""Quiet is also what is below -70 dB of full scale."""
_GAP_S: Final = 1.0
"""Quiet of at least this duration is skipped at the beginning of a window."""
_LEAD_S: Final = 0.2
"""How much quiet is kept before and after what is heard."""
_LEAST_FRAMES: Final = 4
"""Fewer loud frames are a click, not a word."""
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LoudFrames:
    """Which frames of FRAME_S of a file are not quiet."""

    frames: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, samples: npt.NDArray[np.float32], rate_hz: int) -> LoudFrames:
        """Measure audio, float32 [samples] in [-1, 1]."""
        power = _measure_power(samples, round(FRAME_S * rate_hz))
        if not power.size:
            return cls(np.zeros(0, np.bool_))
        width = min(_SMOOTHED_FRAMES, power.size)
        totals = np.concatenate([[0.0], np.cumsum(power)])
        loudest = ((totals[width:] - totals[:-width]) / width).max()
        return cls(power >= max(loudest * _RELATIVE**2, _FLOOR**2))

    def next_start(self, from_s: float) -> float | None:
        """Returns where to hear on from this second: there, or shortly before the quiet ends; None if it lasts to the
        end of the file."""
        first = int(from_s / FRAME_S)
        loud = np.flatnonzero(self.frames[first:])
        if loud.size < _LEAST_FRAMES:
            return None
        quiet_s = float(loud[0]) * FRAME_S
        return from_s if quiet_s < _GAP_S else max(from_s, (first + float(loud[0])) * FRAME_S - _LEAD_S)

    def end_s(self) -> float:
        """Returns where the last quiet begins, with a little of it."""
        loud = np.flatnonzero(self.frames)
        last = int(loud[-1]) + 1 if loud.size else 0
        return min(self.frames.size * FRAME_S, last * FRAME_S + _LEAD_S) if last else 0.0


def _measure_power(samples: npt.NDArray[np.float32], frame: int) -> npt.NDArray[np.float64]:
    """Returns the mean square of each frame; the last one may be shorter."""
    step = _BLOCK // frame * frame
    parts = []
    for begin in range(0, samples.size, step):
        block = samples[begin : begin + step].astype(np.float64)
        block *= block
        starts = np.arange(0, block.size, frame)
        parts.append(np.add.reduceat(block, starts) / np.diff(np.append(starts, block.size)))
    return np.concatenate(parts) if parts else np.zeros(0)


WINDOW_S: Final = 30.0
TICK_S: Final = 0.02
"""Time between two timestamps of the vocabulary."""
_LEAST_ADVANCE_S: Final = 0.5
"""If the next window would begin earlier, this window's unfinished rest is kept, so that the number of windows is
bounded."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech."""

    token_ids: tuple[int, ...]
    """Tokens of text, without timestamps."""
    start_s: float
    """Relative to the beginning of the window."""
    end_s: float


class WindowReader:
    """Cuts the tokens of one window into segments while the model writes them."""

    def __init__(self, *, end_id: int, first_timestamp_id: int, window_s: float) -> None:
        """`window_s`: how much audio the window holds, at most WINDOW_S."""
        self._end_id = end_id
        self._first = first_timestamp_id
        self._window_s = window_s
        self._open: list[int] = []
        """The tokens of the segment that is not closed yet."""
        self.has_pair = False
        """Whether a pair of timestamps was written."""
        self._closed_s = 0.0
        """End of the last closed segment."""

    def add(self, token_ids: Iterable[int]) -> list[Segment]:
        """Returns the segments that end within these tokens."""
        closed = []
        for token_id in token_ids:
            if token_id >= self._first and self._open and self._open[-1] >= self._first:
                closed.append(self._close(self._seconds(self._open[0]), self._seconds(self._open[-1])))
                self.has_pair, self._open = True, []
            if token_id != self._end_id:
                self._open.append(token_id)
        return closed

    def end(self) -> tuple[list[Segment], float]:
        """Returns the last segments of the window, and where the next window begins, in seconds after this one."""
        if not self.has_pair:
            # A timestamp that begins the window is no end, unlike in transformers.
            times = [token_id for token_id in self._open[1:] if token_id >= self._first]
            return [self._close(0.0, self._seconds(times[-1]) if times else self._window_s)], self._window_s
        ends_with_time = len(self._open) > 1 and self._open[-1] >= self._first > self._open[-2]
        if ends_with_time:
            # One timestamp in place of a pair: no speech follows.
            return [self._close(self._seconds(self._open[0]), self._seconds(self._open[-1]))], self._window_s
        has_rest = any(token_id < self._end_id for token_id in self._open)
        if self._closed_s >= _LEAST_ADVANCE_S or not has_rest:
            return [], max(self._closed_s, _LEAST_ADVANCE_S)
        return [self._close(self._seconds(self._open[0]), self._window_s)], self._window_s

    def _close(self, start_s: float, end_s: float) -> Segment:
        text = tuple(token_id for token_id in self._open if token_id < self._end_id)
        end_s = min(end_s, self._window_s)
        self._closed_s = end_s
        return Segment(text, min(start_s, end_s), end_s)

    def _seconds(self, token_id: int) -> float:
        return max(0, token_id - self._first) * TICK_S
