"""A spoken sentence, for tests of turns."""

from __future__ import annotations

import wave
from pathlib import Path

import omni_cli
from omni_gateway.realtime.audio import Resampler

SPEECH = Path(omni_cli.__file__).parent / "assets" / "speech.wav"
"""A sentence of 2.2 s, spoken by a person."""


def speech_24k() -> bytes:
    """Returns a second of silence, the sentence, and two seconds of silence."""
    with wave.open(str(SPEECH)) as file:
        resampler = Resampler(file.getframerate(), 24_000)
        spoken = resampler.add(file.readframes(file.getnframes())) + resampler.finish()
    return bytes(48_000) + spoken + bytes(96_000)
