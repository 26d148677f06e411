"""Defines the requests of the case, and makes the tables of its results. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.harness.interleave import median_ratio, quantile
from benchmarks.harness.report import Row
from benchmarks.harness.verdict import Ratio

REQUESTS = 16
AT_ONCE = (1, 4, 16)
MEAN_CODES = 24
"""Mean number of codes in a request: about half a second of audio."""
EQUAL, MIXED, TALKER = "token2wav, equal lengths", "token2wav, mixed lengths", "talker"
TABLE = "engines"
BATCH_FLOOR = 0.8
"""Minimum speed of a batch, relative to the same requests one by one."""
TOLERANCE = 0.25
_T = TypeVar("_T")


@dataclass(slots=True)
class Side:
    """Measurements of one side at one number of concurrent requests."""

    seconds: list[float]
    """Seconds that each round took for all requests."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each request, counted from the time when its group was sent."""
    peak_mib: float = 0.0
    """Peak memory of the engine's process."""
    idle_mib: float = 0.0
    """Memory of the engine's process before the first request."""


Sides = Mapping[tuple[str, int], Side]


def pick_lengths(side: str) -> list[int]:
    """Returns the number of codes of each request on a side. The total is the same for all sides."""
    if side != MIXED:
        return [MEAN_CODES] * REQUESTS
    lengths = [MEAN_CODES + 1 - REQUESTS + 2 * number for number in range(REQUESTS)]
    random.Random(0).shuffle(lengths)
    return lengths


def split_groups(items: Sequence[_T], at_once: int) -> list[Sequence[_T]]:
    """Returns the items in order, in groups of `at_once`."""
    return [items[start : start + at_once] for start in range(0, len(items), at_once)]


def make_rows(sides: Sides) -> list[Row]:
    """Returns one row for each side and number of concurrent requests."""
    return [
        {
            "side": name,
            "at_once": at_once,
            "requests_per_s": round(REQUESTS / statistics.median(side.seconds), 2),
            "codes_per_s": round(REQUESTS * MEAN_CODES / statistics.median(side.seconds)),
            "latency_ms_p50": round(quantile(side.latencies, 0.5) * 1000),
            "latency_ms_p90": round(quantile(side.latencies, 0.9) * 1000),
            "ratio_to_one_at_once": round(median_ratio(sides[name, AT_ONCE[0]].seconds, side.seconds), 2),
            "engine_peak_mib": round(side.peak_mib),
            "over_idle_mib": round(side.peak_mib - side.idle_mib, 1),
        }
        for (name, at_once), side in sides.items()
    ]


def find_ratios(sides: Sides) -> list[Ratio]:
    """Returns the speed of token2wav's batches, relative to its requests one by one and to the talker."""
    batches = [
        Ratio(
            f"{name}, {at_once} at once, x one at once",
            round(median_ratio(sides[name, AT_ONCE[0]].seconds, sides[name, at_once].seconds), 2),
            at_least=BATCH_FLOOR,
            tolerance=TOLERANCE,
        )
        for name in (EQUAL, MIXED)
        for at_once in AT_ONCE[1:]
    ]
    most = AT_ONCE[-1]
    speed = round(median_ratio(sides[TALKER, most].seconds, sides[MIXED, most].seconds), 2)
    return [*batches, Ratio(f"{MIXED}, {most} at once, x {TALKER}", speed, tolerance=TOLERANCE)]
