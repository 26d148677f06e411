"""Joins the windows of 30 seconds in which Whisper hears audio, by the timestamps that it writes. Pure.

Between the segments of a window the model writes a pair of timestamps, the end of one and the beginning of the next.
What follows the last pair may be a sentence that the window's end cuts. So it is dropped, and the next window begins at
the pair: nothing is lost, and nothing is heard twice. Same rules as transformers 5.19's `_retrieve_segment` and
openai-whisper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
