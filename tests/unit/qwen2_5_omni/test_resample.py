"""Resampling keeps what both rates can hold and drops the rest."""

from __future__ import annotations

import numpy as np
import pytest

from omni_stage.models.qwen2_5_omni.resample import resample


def tone(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_tone_is_kept(rate: int) -> None:
    ours = resample(tone(440, rate), rate, 16_000)
    assert ours.dtype == np.float32
    assert abs(ours.size - 8000) <= 1
    middle = slice(400, 7600)  # the edges see silence outside
    np.testing.assert_allclose(ours[middle], tone(440, 16_000)[middle], atol=2e-3)


def test_what_the_new_rate_cannot_hold_is_dropped() -> None:
    assert np.abs(resample(tone(11_000, 48_000), 48_000, 16_000)[400:-400]).max() < 2e-3


def test_equal_rates_and_no_samples_change_nothing() -> None:
    samples = tone(440, 16_000)
    assert resample(samples, 16_000, 16_000) is samples
    assert resample(np.empty(0, np.float32), 8_000, 16_000).size == 0
