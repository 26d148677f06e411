"""Measures when the response to one request was written to its caller, and how much audio it contained."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2

SAMPLE_BYTES: Final = {sampling_pb2.AUDIO_ENCODING_PCM_S16LE: 2, sampling_pb2.AUDIO_ENCODING_PCM_F32LE: 4}
AUDIBLE_S: Final = 0.02
"""A shorter gap is not an underrun, because players buffer at least one packet of 20 ms."""


@dataclass(slots=True)
class AnswerMeter:
    """What the caller received, and when. Times are seconds since the request's start. The time of the first text or
    audio is None before that output was written; last_audio_s is 0 before any audio."""

    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    last_audio_s: float = 0.0
    audio_s: float = 0.0
    """Playing time of the audio in seconds."""
    underruns: int = 0
    """How often a listener who plays the audio as soon as it arrives had none left to play, for more than AUDIBLE_S."""
    silence_s: float = 0.0
    """Total length of the underruns in seconds."""
    _played_until_s: float = 0.0
    """When the playback of all audio that was written so far ends."""

    def note_text(self) -> None:
        """Record that text was written to the caller's connection."""
        if self.first_text_s is None:
            self.first_text_s = self.clock() - self.began

    def note(self, response: stage_service_pb2.GenerateResponse) -> None:
        """Record a message that was written to the caller's connection."""
        kind = response.WhichOneof("message")
        if kind == "text":
            self.note_text()
        elif kind == "audio" and response.audio.data:
            self.last_audio_s = self.clock() - self.began
            self.first_audio_s = self.last_audio_s if self.first_audio_s is None else self.first_audio_s
            self._play(self.last_audio_s, chunk_seconds(response.audio))

    def _play(self, now_s: float, seconds: float) -> None:
        gap = now_s - self._played_until_s if self.audio_s else 0.0
        if gap > AUDIBLE_S:
            self.underruns += 1
            self.silence_s += gap
        self._played_until_s = max(self._played_until_s, now_s) + seconds
        self.audio_s += seconds


def chunk_seconds(chunk: events_pb2.AudioChunk) -> float:
    """Returns how long a chunk plays, in seconds."""
    frame = SAMPLE_BYTES.get(chunk.encoding, 0) * chunk.channels
    return len(chunk.data) / (frame * chunk.sample_rate_hz) if frame and chunk.sample_rate_hz else 0.0
