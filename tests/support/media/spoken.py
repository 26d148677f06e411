"""A spoken sentence, for tests of turns."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


RATE_HZ = 24_000
Samples = NDArray[np.float64]


def sentence(pause_ms: int = 0) -> Samples:
    """Returns the sentence, with a pause at the quietest place of its middle third."""
    spoken = np.frombuffer(speech_24k(), "<i2").astype(np.float64)[RATE_HZ : -2 * RATE_HZ]
    third = len(spoken) // 3
    loudness = np.convolve(spoken**2, np.ones(RATE_HZ // 20), "same")[third : 2 * third]
    place = third + int(np.argmin(loudness))
    return np.concatenate([spoken[:place], np.zeros(RATE_HZ * pause_ms // 1000), spoken[place:]])


def noise(size: int, random: Any) -> Samples:
    """Returns white noise. random: numpy's generator."""
    return np.asarray(random.standard_normal(size))


def music(size: int, random: Any) -> Samples:
    """Returns two chords of plucked strings a second. random: numpy's generator."""
    made = np.zeros(size)
    for begin in range(0, size, RATE_HZ // 2):
        time = np.arange(min(RATE_HZ // 2, size - begin)) / RATE_HZ
        for hz in random.choice([220, 262, 330, 392, 440, 523], 3):
            string = np.exp(-4 * time) * np.sin(2 * np.pi * hz * time)
            made[begin : begin + len(time)] += string + 0.3 * np.exp(-6 * time) * np.sin(4 * np.pi * hz * time)
    return made


def mix(speech: Samples, behind: Samples, decibels: float) -> bytes:
    """Returns speech before a background, as PCM. decibels: how much louder the sentence is."""
    level = np.sqrt(np.mean(sentence() ** 2) / np.mean(behind**2)) * 10 ** (-decibels / 20)
    return bytes(np.clip(speech + level * behind, -32768, 32767).astype("<i2").tobytes())
