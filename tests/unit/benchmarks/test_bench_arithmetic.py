"""The arithmetic of the benchmarks: quantiles, ratios, and the parts of a request."""

from __future__ import annotations

import pytest
from benchmarks.harness.interleave import median_ratio, quantile, time_rounds
from benchmarks.harness.report import format_table
from benchmarks.pipeline.breakdown import PARTS, split

from omni_proto.client import StageTimings

MS = 1_000_000


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3, 1, 2], 0.5, 2), ([3, 1, 2], 1.0, 3), ([1], 0.01, 1), (list(range(1, 101)), 0.99, 99), ([1, 2], 0.9, 2)],
)
def test_quantile(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_quantile_of_nothing(values: list[float], share: float) -> None:
    """quantile() raises ValueError if there are no values or the share is outside of (0, 1]."""
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, share)


def test_a_disturbed_round_does_not_move_the_ratio() -> None:
    assert median_ratio([2.0, 200.0, 2.0], [1.0, 100.0, 1.0]) == 2.0


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []
    sides = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = time_rounds(sides, 2)
    assert order == list("abc" + "bca" + "cab")
    assert {name: len(times) for name, times in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_table_lines_up() -> None:
    assert format_table([{"side": "a", "n": 1}, {"side": "bb", "n": None}]) == "  side  n\n  a     1\n  bb    -"


def test_parts_of_a_stage_add_up_to_its_end() -> None:
    timings = StageTimings(
        accepted_unix_ns=10 * MS,
        input_complete_ns=2 * MS,
        engine_submitted_ns=3 * MS,
        engine_scheduled_ns=5 * MS,
        first_output_ns=6 * MS,
        last_output_ns=20 * MS,
        transfer_start_ns=6 * MS,
        transfer_end_ns=22 * MS,
        finished_ns=23 * MS,
    )
    parts = split(timings, caller_unix_ns=9 * MS)
    assert tuple(parts) == PARTS
    assert list(parts.values()) == [1, 2, 1, 2, 15, 2, 1]
    assert sum(parts.values()) - parts["reach"] == timings.finished_ns / MS


def test_a_stage_that_sends_nothing_and_was_never_scheduled() -> None:
    timings = StageTimings(input_complete_ns=MS, engine_submitted_ns=MS, last_output_ns=4 * MS, finished_ns=4 * MS)
    parts = split(timings, caller_unix_ns=0)
    assert (parts["queue"], parts["engine"], parts["hand over"]) == (0, 3, 0)
