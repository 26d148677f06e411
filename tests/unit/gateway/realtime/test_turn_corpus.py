"""Turns in a small corpus: how often one is cut off in a pause, missed, or found where nobody speaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omni_gateway.realtime.detector import Detector
from omni_gateway.realtime.state.config import AudioFormat, TurnDetection
from omni_gateway.realtime.state.turns import Began, Hesitated, Resumed, Turn
from support.media.spoken import RATE_HZ, Samples, mix, music, noise, sentence

SILENCE = np.zeros(3 * RATE_HZ // 2)
Background = Callable[[int, Any], Samples]


async def follow(data: bytes, settings: TurnDetection | None = None, early_ms: int = 0) -> list[Turn]:
    """Returns the turns in PCM that arrives in pieces of 100 ms."""
    detector = Detector(settings or TurnDetection(), AudioFormat(), 0.0, early_ms)
    step = 2 * RATE_HZ // 10
    return [turn for at in range(0, len(data), step) async for turn in detector.add(data[at : at + step])]


def begun(turns: list[Turn]) -> int:
    return sum(isinstance(one, Began) for one in turns)


@pytest.mark.parametrize("silence_ms", [500, 800])
async def test_only_pauses_longer_than_the_silence_cut_a_turn(silence_ms: int) -> None:
    cut = []
    for pause_ms in range(200, 1300, 100):
        data = np.concatenate([SILENCE, sentence(pause_ms), SILENCE]).astype("<i2").tobytes()
        turns = begun(await follow(data, TurnDetection(silence_duration_ms=silence_ms)))
        assert turns in (1, 2)
        cut.append((pause_ms, turns == 2))
    assert all(pause_ms > silence_ms for pause_ms, is_cut in cut if is_cut)
    # The sound before a pause fades away, and that after it fades in: 100 ms in this sentence.
    assert all(is_cut for pause_ms, is_cut in cut if pause_ms >= silence_ms + 200)


async def test_early_answers_are_wasted_only_on_pauses() -> None:
    early = wasted = 0
    for pause_ms in range(0, 1300, 100):
        data = np.concatenate([SILENCE, sentence(pause_ms), SILENCE]).astype("<i2").tobytes()
        turns = await follow(data, TurnDetection(), early_ms=200)
        resumed = sum(isinstance(one, Resumed) for one in turns)
        early += sum(isinstance(one, Hesitated) for one in turns)
        wasted += resumed
        assert resumed <= (pause_ms > 200), pause_ms
        assert sum(isinstance(one, Hesitated) for one in turns) == resumed + begun(turns)
    assert 2 * wasted <= early


@pytest.mark.parametrize(("background", "decibels"), itertools.product([noise, music], [20, 10, 5, 0]))
async def test_no_turn_is_missed_behind_noise_and_music_as_loud_as_the_speech(
    background: Background, decibels: int
) -> None:
    random = np.random.default_rng(decibels)
    spoken = np.concatenate([SILENCE, sentence(), SILENCE])
    behind = background(len(spoken), random)
    began, paused = await follow(mix(spoken, behind, decibels))
    assert isinstance(began, Began)
    assert 1100 <= began.audio_ms <= 1400
    assert 3500 <= paused.audio_ms <= 4200


async def test_noise_is_no_turn_and_music_rarely_one() -> None:
    found = {}
    for background in (noise, music):
        turns = 0
        for decibels in (20, 10, 5, 0):
            random = np.random.default_rng(decibels)
            silence = np.zeros(5 * RATE_HZ)
            turns += begun(await follow(mix(silence, background(len(silence), random), decibels)))
        found[background] = turns
    assert found[noise] == 0
    assert found[music] <= 2, "turns in 20 s"


@pytest.mark.parametrize("level", [1, 0.3, 0.1, 0.03, 0.01])
async def test_quiet_speech_is_no_missed_turn(level: float) -> None:
    assert begun(await follow((level * np.concatenate([SILENCE, sentence(), SILENCE])).astype("<i2").tobytes())) == 1
