"""Which parts of a file asr/whisper hears: silence is skipped, the pauses of speech are not."""

from __future__ import annotations

import numpy as np
import pytest

from omni_stage.models.asr.windows import LoudFrames

RATE = 16_000


def audio(*parts: tuple[float, float]) -> np.ndarray:
    """Returns noise of the given (seconds, level) parts."""
    noise = np.random.default_rng(1).standard_normal(round(sum(seconds for seconds, _ in parts) * RATE))
    levels = np.concatenate([np.full(round(seconds * RATE), level) for seconds, level in parts])
    return (noise * levels).astype(np.float32)


@pytest.mark.parametrize(
    ("parts", "from_s", "start_s"),
    [
        pytest.param([(2, 0.1)], 0.0, 0.0, id="speech from the start"),
        pytest.param([(0.6, 0), (2, 0.1)], 0.0, 0.0, id="a short lead is kept"),
        pytest.param([(7, 0), (2, 0.1)], 0.0, 6.8, id="a long one is skipped"),
        pytest.param([(7, 0.0005), (2, 0.1)], 0.0, 6.8, id="as is the noise of a room"),
        pytest.param([(2, 0.1), (8, 0), (2, 0.1)], 2.0, 9.8, id="a gap"),
        pytest.param([(2, 0.1), (0.8, 0), (2, 0.1)], 2.0, 2.0, id="a pause"),
        pytest.param([(2, 0.1), (8, 0)], 2.0, None, id="nothing follows"),
        pytest.param([(2, 0.1), (3, 0), (0.04, 0.1)], 2.0, None, id="a click follows"),
        pytest.param([(5, 0)], 0.0, None, id="silence"),
        pytest.param([(5, 0.0001)], 0.0, None, id="noise that no recording holds"),
        pytest.param([(3, 0.3), (3, 0), (3, 0.01)], 3.0, 5.8, id="quiet speech after loud"),
        pytest.param([], 0.0, None, id="no audio"),
        pytest.param([(0.01, 0.1)], 0.0, None, id="less than a frame"),
    ],
)
def test_next_start(parts: list[tuple[float, float]], from_s: float, start_s: float | None) -> None:
    found = LoudFrames.of(audio(*parts) if parts else np.zeros(0, np.float32), RATE).next_start(from_s)
    assert found == (None if start_s is None else pytest.approx(start_s, abs=0.05))


def test_the_end_keeps_a_little_quiet() -> None:
    assert LoudFrames.of(audio((2, 0.1), (8, 0)), RATE).end_s() == pytest.approx(2.2, abs=0.05)
    assert LoudFrames.of(audio((2, 0.1)), RATE).end_s() == pytest.approx(2.0, abs=0.05)


def test_long_audio_is_measured_in_blocks() -> None:
    """The frames are the same as those of the parts alone."""
    long = audio((70, 0.1), (30, 0), (40, 0.1))
    whole = LoudFrames.of(long, RATE)
    assert whole.frames.size == 140 * 50
    assert whole.next_start(70.0) == pytest.approx(99.8, abs=0.05)
