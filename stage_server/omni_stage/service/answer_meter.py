"""When the answer of one request reached its caller, and how much audio it held."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.service.audio import chunk_seconds


@dataclass(slots=True)
class AnswerMeter:
    """Seconds since the request's start; None if it did not happen."""

    began: float = field(default_factory=time.monotonic)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    last_audio_s: float = 0.0
    audio_s: float = 0.0
    """Length of the audio in seconds, as it plays."""

    def note_text(self) -> None:
        """A text was handed to the caller's connection."""
        if self.first_text_s is None:
            self.first_text_s = time.monotonic() - self.began

    def note(self, response: stage_service_pb2.GenerateResponse) -> None:
        """A message was handed to the caller's connection."""
        kind = response.WhichOneof("message")
        if kind == "text":
            self.note_text()
        elif kind == "audio" and response.audio.data:
            self.last_audio_s = time.monotonic() - self.began
            self.first_audio_s = self.first_audio_s or self.last_audio_s
            self.audio_s += chunk_seconds(response.audio)
