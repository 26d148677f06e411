"""Runs the operator's decision over days of traffic in virtual time, beside an oracle (day.py, traffic.py), and
compares ways to divide GPUs among stages (equal_gpus.py).

Nothing here depends on the machine: the same code gives the same figures everywhere.
"""

from __future__ import annotations

from typing import Final

from benchmarks.harness.report import Options, Report
from benchmarks.harness.verdict import Ratio
from benchmarks.scaling.day import DayResult, run_day
from benchmarks.scaling.equal_gpus import TABLE as EQUAL, compare
from benchmarks.scaling.traffic import DAY_S, RateAt, day_rate, drawn_day, recorded_traffic

TABLE: Final = "a day of traffic"
DESIGNED: Final = "designed"
SEEDS: Final = (101, 102, 103)
"""Days that nobody tuned the decision for."""


def measure(options: Options) -> Report:
    """Returns the objective, the cost and the reversals of each day. `options.rounds` is unused: nothing varies."""
    cases: dict[str, tuple[RateAt, int]] = {DESIGNED: (day_rate, DAY_S)}
    cases |= {f"drawn, seed {seed}": (drawn_day(seed), DAY_S) for seed in SEEDS}
    cases |= {f"recorded, {name}": one for name, one in recorded_traffic().items()}
    found: dict[str, DayResult] = {}
    for name, (rate_at, seconds) in cases.items():
        found[name] = run_day(rate_at, seconds=seconds)
        print(name, found[name], flush=True)
    rows = [
        {
            "traffic": name,
            "minutes that met the objective": round(one.met, 4),
            "replica-seconds, of the oracle's": round(one.cost, 3),
            "reversals within 10 minutes, at most": one.most_reversals,
        }
        for name, one in found.items()
    ]
    day = found[DESIGNED]
    ratios = [
        Ratio("designed day, minutes that met the objective", round(day.met, 4), at_least=0.99, tolerance=0.005),
        Ratio("designed day, replica-seconds / oracle's", round(day.cost, 3), at_most=1.15, tolerance=0.02),
        Ratio("designed day, reversals within 10 minutes", day.most_reversals, at_most=1, goal=True, tolerance=0.5),
    ]
    notes = ["The oracle knows the rate of every second and needs no time to start a pod. benchmarks/scaling has both."]
    return Report({TABLE: rows, EQUAL: compare()}, ratios, notes)
