"""What a listener hears of chunks that come: tables."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.first_audio.playback import Chunk, count_clicks, play


@pytest.mark.parametrize(
    ("chunks", "heard"),
    [
        ([(1.0, 0.5)], (1.0, 0.5, 0, 0.0, 1.5)),
        ([(1.0, 0.5), (1.2, 0.5)], (1.0, 1.0, 0, 0.0, 2.0)),
        ([(1.0, 0.5), (1.5, 0.5)], (1.0, 1.0, 0, 0.0, 2.0)),  # just in time
        ([(1.0, 0.5), (2.0, 0.5), (4.0, 1.0)], (1.0, 2.0, 2, 2.0, 5.0)),
        ([(1.0, 3.0), (2.0, 0.5), (4.0, 1.0)], (1.0, 4.5, 0, 0.0, 5.5)),
    ],
)
def test_gaps_at_playback_speed(
    chunks: list[tuple[float, float]], heard: tuple[float, float, int, float, float]
) -> None:
    found = play([Chunk(at, seconds) for at, seconds in chunks])
    assert (found.first, found.audio, found.gaps, found.silence, found.ends) == pytest.approx(heard)


def test_no_audio_is_an_error() -> None:
    with pytest.raises(ValueError, match="no audio"):
        play([])


def test_a_border_clicks_if_its_step_is_larger_than_any_other() -> None:
    smooth = np.sin(np.arange(400) / 10).astype(np.float32)
    assert count_clicks(smooth, [100, 200, 300]) == 0
    broken = smooth.copy()
    broken[200:] += 0.5
    assert count_clicks(broken, [100, 200, 300]) == 1
    assert count_clicks(broken, [100, 300]) == 0, "a step of the audio itself is none of a border"
    assert count_clicks(smooth, []) == 0
