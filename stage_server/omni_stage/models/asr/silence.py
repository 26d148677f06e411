"""Finds the silence of a file, in which Whisper invents words, so that it hears only what may be speech. Pure.

A frame is quiet if its level is far below the loudest of the file, or below what a recording can hold. Only quiet that
lasts is skipped: the pauses of speech are the model's to hear.
"""

from __future__ import annotations

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
