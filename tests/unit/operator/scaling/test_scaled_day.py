"""The operator's decision over six hours of traffic in virtual time; benchmarks.scaling.day.run_day runs a day."""

from __future__ import annotations

from benchmarks.scaling.day import run_day
from benchmarks.scaling.traffic import day_rate

SIX_H = 6 * 3600


def test_a_morning_with_a_dead_hour_and_a_burst() -> None:
    found = run_day(lambda second: day_rate(second + 2 * 3600), seconds=SIX_H)
    assert found.met >= 0.97
    assert found.cost <= 1.25
    assert found.most_reversals <= 1
