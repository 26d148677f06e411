"""Runs sides in turn and compares their medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def time_interleaved(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each side. One round runs every side once; a first, uncounted round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(rounds + 1):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
