"""Joins the audio of several parts without a click: fades at their borders, with silence between them. Pure."""

from __future__ import annotations

from array import array
from typing import Final

FADE_S: Final = 0.005
"""Too short to be heard as a fade, and long enough that no step between two samples is heard as a click."""


class Seams:
    """Passes samples (s16le, channels interleaved) on. Only at borders between parts are they changed.

    Holds back the last few milliseconds, because they fade out if another part follows.
    """

    def __init__(self, rate_hz: int, channels: int) -> None:
        self._rate_hz = rate_hz
        self._frame = 2 * channels
        self._fade = max(1, round(rate_hz * FADE_S))
        self._held = b""
        self._faded_in: int | None = None
        """Frames of the part that were faded in; None: the first part, which begins as the model made it."""

    def add(self, pcm: bytes) -> bytes:
        """Returns samples that may be played. pcm: the next samples of the part."""
        if self._faded_in is not None and self._faded_in < self._fade:
            pcm = self._fade_in(pcm, self._faded_in)
        data = self._held + pcm
        end = max(0, len(data) - self._fade * self._frame)
        self._held = data[end:]
        return data[:end]

    def pause(self, seconds: float) -> bytes:
        """Returns the end of the part, faded out, and silence. The next samples are those of another part."""
        frames = len(self._held) // self._frame
        gains = [place / self._fade for place in range(frames, 0, -1)]
        faded = _scale(self._held, gains, self._frame // 2)
        self._held, self._faded_in = b"", 0
        return faded + bytes(self._frame * round(self._rate_hz * seconds))

    def finish(self) -> bytes:
        """Returns the end of the last part."""
        rest, self._held = self._held, b""
        return rest

    def _fade_in(self, pcm: bytes, begin: int) -> bytes:
        frames = min(self._fade - begin, len(pcm) // self._frame)
        size = frames * self._frame
        self._faded_in = begin + frames
        gains = [(begin + place) / self._fade for place in range(frames)]
        return _scale(pcm[:size], gains, self._frame // 2) + pcm[size:]


def _scale(pcm: bytes, gains: list[float], channels: int) -> bytes:
    samples = array("h", pcm)
    for frame, gain in enumerate(gains):
        for place in range(frame * channels, (frame + 1) * channels):
            samples[place] = round(samples[place] * gain)
    return samples.tobytes()
