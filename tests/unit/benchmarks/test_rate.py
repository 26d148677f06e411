"""The open-loop benchmark's arrivals and figures, and the goals in virtual time."""

from __future__ import annotations

import pytest
from benchmarks.paced.goals import CASES, FLOOR_MS, goal_rows
from benchmarks.paced.ideal import Chunk, Outcome
from benchmarks.paced.rate import CARRIED, GATHERED, SINGLE, arrivals, continuity, count_windows, judge_rates


def test_arrivals_keep_the_rate_and_are_the_same_each_time() -> None:
    times = arrivals(5.0, 200.0)
    assert times == arrivals(5.0, 200.0)
    assert times == sorted(times)
    assert times[-1] < 200.0
    assert len(times) == pytest.approx(1000, rel=0.1)


def test_a_stream_is_continuous_if_no_gap_is_longer() -> None:
    late = Outcome(chunks=[Chunk(1.0, 0.1), Chunk(1.16, 0.1)])  # 60 ms of silence
    good = Outcome(chunks=[Chunk(1.0, 0.1), Chunk(1.1, 0.1)])
    assert continuity([late, good, good, good], 0.05) == 0.75
    assert continuity([late, good, good, good], 0.1) == 1.0


def test_a_window_that_is_sent_in_two_chunks_is_one_request() -> None:
    """Windows of 1, 2, 4, 8 and 8 frames: the last two are longer than a chunk of audio may be."""
    sent = [0.08, 0.16, 0.32, 0.5, 0.14, 0.5, 0.14]
    assert count_windows([Outcome(chunks=[Chunk(0.0, seconds) for seconds in sent])] * 3) == 15


def test_gathering_is_judged_at_the_same_rate() -> None:
    def row(name: str, asked: float) -> dict[str, object]:
        return {"run": "warm", "code2wav": name, "requests/s": 4.0, "C50": 1.0, "first audio p50 ms": 100.0} | {
            "code2wav requests/audio s": asked,
            CARRIED: 300.0,
        }

    values = {ratio.name: ratio.value for ratio in judge_rates([row(GATHERED, 2.0), row(SINGLE, 12.5)])}
    assert values["code2wav requests, single frames x gathered"] == 6.25
    assert values["C50 at 4 requests/s"] == 1.0
    assert values["code2wav pod, audio s for each core s"] == 300.0


@pytest.mark.parametrize("count", [one if one <= 8 else pytest.param(one, marks=pytest.mark.full) for one in FLOOR_MS])
def test_gathering_frames_costs_no_first_audio_and_no_gap(count: int) -> None:
    """In virtual time with the steps of CUDA graphs: code2wav gets at most a quarter of the requests."""
    rows, ratios = goal_rows([count])
    assert len(rows) == len(CASES)
    for row in rows:
        assert row["first audio ms"] == row["with single frames ms"]
        assert row["listeners with gaps"] <= row["gaps with single frames"]
        if row["goal ms"] is not None:
            assert row["code2wav requests per audio second"] * 4 <= row["with single frames"]
            assert row["first audio ms"] >= row["floor ms"]
    assert [ratio.name for ratio in ratios if not ratio.met] == []
