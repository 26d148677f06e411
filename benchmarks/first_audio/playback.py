"""Computes what a listener hears if audio is played as it arrives: when it starts, its pauses and its clicks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of audio that arrived."""

    at: float
    """Seconds since the request was sent."""
    seconds: float
    """Seconds of audio in it."""


@dataclass(frozen=True, slots=True)
class Playback:
    """One answer, played from its first chunk on."""

    first: float
    """Seconds until it starts."""
    audio: float
    """Seconds of audio."""
    gaps: int
    """How often the player had nothing to play."""
    silence: float
    """Total length of the gaps, in seconds."""

    @property
    def ends(self) -> float:
        """Seconds until the last sample is heard."""
        return self.first + self.audio + self.silence


def play(chunks: Sequence[Chunk]) -> Playback:
    """Returns the playback of chunks in order of arrival. Raises ValueError if there are none."""
    if not chunks:
        raise ValueError("no audio came")
    runs_out = chunks[0].at
    gaps, silence = 0, 0.0
    for chunk in chunks:
        if chunk.at > runs_out:
            gaps, silence = gaps + 1, silence + chunk.at - runs_out
        runs_out = max(runs_out, chunk.at) + chunk.seconds
    return Playback(chunks[0].at, sum(chunk.seconds for chunk in chunks), gaps, silence)


def count_clicks(samples: NDArray[np.float32], borders: Sequence[int]) -> int:
    """Returns how many borders between chunks have a larger step between two samples than any place inside a chunk.

    `samples`: [n]. `borders`: for each chunk but the first, the index of its first sample.
    """
    steps = np.abs(np.diff(samples))
    at_borders = np.zeros(len(steps), bool)
    at_borders[[border - 1 for border in borders if 0 < border < len(samples)]] = True
    if not at_borders.any() or at_borders.all():
        return 0
    return int((steps[at_borders] > steps[~at_borders].max()).sum())
