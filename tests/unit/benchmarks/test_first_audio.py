"""What a listener hears when chunks of audio arrive at given times, and the tables of the first-audio benchmarks."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.first_audio.families import QWEN3
from benchmarks.first_audio.measure import find_ratios
from benchmarks.first_audio.playback import Chunk, count_clicks, play
from benchmarks.paced.measure import ANCHOR, carried_rows


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
    """`chunks`: (arrival, length) of each chunk. Times are in seconds.

    `heard`: (first audio, length of all audio, number of gaps, length of all silence, end of playback).
    """
    found = play([Chunk(at, seconds) for at, seconds in chunks])
    assert (found.first, found.audio, found.gaps, found.silence, found.ends) == pytest.approx(heard)


def test_no_audio_is_an_error() -> None:
    with pytest.raises(ValueError, match="no audio"):
        play([])


def test_a_border_clicks_if_its_step_is_larger_than_any_other() -> None:
    """A border between chunks clicks if the samples jump there by more than anywhere inside the chunks."""
    smooth = np.sin(np.arange(400) / 10).astype(np.float32)
    assert count_clicks(smooth, [100, 200, 300]) == 0
    broken = smooth.copy()
    broken[200:] += 0.5
    assert count_clicks(broken, [100, 200, 300]) == 1
    assert count_clicks(broken, [100, 300]) == 0, "a jump inside a chunk is not at a border"
    assert count_clicks(smooth, []) == 0


def test_earlier_audio_is_never_a_regression() -> None:
    """Lower is better for first audio also where it has no bound: with few seconds of audio, or few requests."""
    rows = [
        {"side": side, "at_once": 4, "audio_s": seconds, "first_audio_s_p50": first}
        for seconds in (2, 8)
        for side, first in (("Full", 1.0), ("Stream", 0.1))
    ]
    ratios = find_ratios(rows, QWEN3)
    assert len(ratios) == 2
    assert all(ratio.lower_is_better for ratio in ratios)


def test_what_two_cores_carry() -> None:
    """carried_rows finds three numbers of concurrent requests.

    They are the highest that was measured, the highest that leaves two cores 20 % idle, and the highest that also
    keeps first audio within 10 % of the ideal.
    """
    made = {16: (0.4, 105, 100), 32: (1.5, 130, 100), 64: (1.9, 300, 390)}
    streams = [
        {"table": ANCHOR, "at once": count, "first audio ms": first, "ideal ms": 100, "RTF": 1.0, "ideal RTF": 1.0}
        for count, (_, first, _) in made.items()
    ]
    busy = [
        {
            "table": ANCHOR,
            "mode": "Stream",
            "at once": count,
            "cores": cores,
            "text done ms": text,
            "ideal text ms": 100,
        }
        for count, (cores, _, text) in made.items()
    ]
    most, idle, on_time = carried_rows(streams, busy)
    assert (most["at once"], most["latest"]) == (64, "text"), "text is the furthest from its ideal"
    assert idle["at once"] == 32
    assert (on_time["at once"], on_time["first audio x ideal"]) == (16, 1.05)
