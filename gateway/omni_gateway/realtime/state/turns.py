"""When a user's turn begins and ends, from the probability of speech in each frame. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from omni_gateway.realtime.state.config import TurnDetection

FRAME_MS: Final = 32
SPEECH_FRAMES: Final = 2
"""Frames of speech in a row that begin a turn. A single one may be a click, and each further one delays the moment at
which an answer is interrupted by 32 ms."""
HYSTERESIS: Final = 0.15
"""A turn ends only by frames that are this much less likely to be speech than those that begin it, as in Silero's own
iterator."""


@dataclass(frozen=True, slots=True)
class Began:
    """The user began to speak."""

    audio_ms: int
    """Begin of the turn's audio, in ms since the session's first audio: that of the speech, less prefix_padding_ms."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The user's turn is over."""

    audio_ms: int
    """End of the turn's audio, which has the silence at its end."""


@dataclass(frozen=True, slots=True)
class Hesitated:
    """The user is silent; the turn may be over."""

    audio_ms: int
    """End of the turn's audio, if it is."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The user continues after Hesitated."""


Turn = Began | Paused | Hesitated | Resumed


class TurnDetector:
    """Follows one session's audio."""

    def __init__(self, settings: TurnDetection, start_ms: float = 0.0, early_ms: int = 0) -> None:
        """start_ms: position of the first frame in the session's audio. early_ms: silence after which the user has
        hesitated; 0 reports no hesitation."""
        self.settings = settings
        self._early_ms = early_ms
        self._hesitates = False
        self.speaks = False
        self._at_ms = start_ms
        self._start_ms = start_ms
        self._run = 0
        """Frames of speech in a row."""
        self._silent = 0
        """Frames without speech since the last one with it."""

    def use(self, settings: TurnDetection) -> None:
        """Follow further frames with these settings. A turn that has begun continues."""
        self.settings = settings

    def add(self, probability: float) -> Iterator[Turn]:
        """Yields what a frame's probability of speech changes."""
        self._at_ms += FRAME_MS
        settings = self.settings
        is_speech = probability >= settings.threshold
        if not self.speaks:
            self._run = self._run + 1 if is_speech else 0
            if self._run >= SPEECH_FRAMES:
                self.speaks, self._silent = True, 0
                began = self._at_ms - self._run * FRAME_MS - settings.prefix_padding_ms
                yield Began(round(max(self._start_ms, began)))
            return
        if is_speech:
            self._silent = 0
            if self._hesitates:
                self._hesitates = False
                yield Resumed()
        elif probability < settings.threshold - HYSTERESIS or self._silent:
            self._silent += 1
            if self._silent * FRAME_MS >= settings.silence_duration_ms:
                self.reset()
                yield Paused(round(self._at_ms))
            elif 0 < self._early_ms <= self._silent * FRAME_MS and not self._hesitates:
                self._hesitates = True
                yield Hesitated(round(self._at_ms))

    def reset(self) -> None:
        """End the turn without a report."""
        self.speaks, self._run, self._silent, self._hesitates = False, 0, 0, False
