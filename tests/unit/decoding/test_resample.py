"""Resampling keeps the frequencies that both rates can represent and drops the others. Its memory is bounded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from omni_stage.decoding.resample import resample, resample_blocks
from support.processes.polling import PATIENCE_S

ODD_RATES = (1_000, 8_001, 11_027, 16_001, 44_101, 47_999, 191_999, 383_999)
"""1 kHz, and rates that are coprime to 16 kHz, for which filters for all phases would take gigabytes."""


def tone(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 8_001, 16_001, 383_999])
def test_tone_is_kept(rate: int) -> None:
    ours = resample(tone(440, rate), rate, 16_000)
    assert ours.dtype == np.float32
    assert abs(ours.size - 8000) <= 1
    middle = slice(400, 7600)  # near the edges the filter also covers silence
    np.testing.assert_allclose(ours[middle], tone(440, 16_000)[: ours.size][middle], atol=1e-4)


def test_what_the_new_rate_cannot_hold_is_dropped() -> None:
    assert np.abs(resample(tone(11_000, 48_000), 48_000, 16_000)[400:-400]).max() < 1e-4


def test_equal_rates_and_no_samples_change_nothing() -> None:
    samples = tone(440, 16_000)
    assert resample(samples, 16_000, 16_000) is samples
    assert resample(np.empty(0, np.float32), 8_000, 16_000).size == 0
    np.testing.assert_array_equal(resample_blocks([samples[:100], samples[100:]], 16_000, 16_000), samples)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000, *ODD_RATES])
def test_blocks_of_any_size_make_the_same_audio(rate: int) -> None:
    samples = np.random.default_rng(rate).uniform(-1, 1, rate // 2).astype(np.float32)
    whole = resample(samples, rate, 16_000)
    assert whole.size == -(-samples.size * 16_000 // rate)
    cuts = sorted(np.random.default_rng(1).integers(0, samples.size, 7))
    np.testing.assert_allclose(resample_blocks(np.split(samples, cuts), rate, 16_000), whole, atol=1e-6)


LIMITED = """
import resource, sys
import numpy as np
from omni_stage.decoding.resample import resample
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20),) * 2)
for rate in map(int, sys.argv[1:]):
    assert resample(np.zeros(rate // 4, np.float32), rate, 16_000).size == -(-(rate // 4) * 16_000 // rate)
"""


def test_no_rate_takes_more_than_64_mib() -> None:
    """An earlier resampler took 4 GiB and 24 s for 1,844 bytes at 8,001 Hz."""
    rates = [str(rate) for rate in (8_000, 48_000, *ODD_RATES)]
    done = subprocess.run([sys.executable, "-c", LIMITED, *rates], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
