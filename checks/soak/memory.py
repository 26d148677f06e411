"""Samples the resident memory of every process of every stage, and finds those that grew.

The processes are the stage server, its engine and its helpers. After a restart the new process counts separately. A
process fills caches at first (imports, first requests), so its growth counts only after SETTLE_S seconds. Growth is the
median of the last quarter of its samples minus the median of the first quarter, so that a single request more or less
at the end does not count as a leak.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil
from benchmarks.harness.memory import MIB, is_engine

SERVER, ENGINE, HELPER = "stage server", "engine", "helper"
EVERY_S = 5.0
SETTLE_S = 120.0
LEAST_SAMPLES = 24
"""Samples needed after SETTLE_S: two minutes. A shorter life says nothing about leaks."""
GROWTH_LIMIT_MIB = 32.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment."""

    role: str
    pid: int
    started: float
    """Seconds since the epoch."""
    age_s: float
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How much one process grew after SETTLE_S."""

    stage: str
    role: str
    minutes: float
    """For how many minutes it was watched after SETTLE_S."""
    mib: float


def sample_tree(pid: int, now: float) -> list[Sample]:
    """Returns a sample of the stage server `pid` and of each of its descendants. Processes that end meanwhile are left
    out. `now` is in seconds since the epoch."""
    try:
        server = psutil.Process(pid)
        tree = [server, *server.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [sample for process in tree if (sample := _sample(process, pid, now)) is not None]


def _sample(process: psutil.Process, server: int, now: float) -> Sample | None:
    try:
        role = SERVER if process.pid == server else ENGINE if is_engine(process) else HELPER
        started = process.create_time()
        return Sample(role, process.pid, started, now - started, process.memory_info().rss / MIB)
    except psutil.NoSuchProcess:
        return None


class MemoryLog:
    """The memory samples of a run."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, str, int, float], list[Sample]] = defaultdict(list)

    def add(self, stage: str, samples: Iterable[Sample]) -> None:
        """Adds the samples of one stage at one moment."""
        for sample in samples:
            self._lives[stage, sample.role, sample.pid, sample.started].append(sample)

    def growths(self) -> list[Growth]:
        """Returns the growth of every process that was watched for long enough."""
        found = []
        for (stage, role, _, _), samples in self._lives.items():
            settled = [sample for sample in samples if sample.age_s >= SETTLE_S]
            if len(settled) >= LEAST_SAMPLES:
                minutes = (settled[-1].age_s - settled[0].age_s) / 60
                found.append(Growth(stage, role, round(minutes, 1), round(grown_mib(settled), 1)))
        return found

    def problems(self) -> list[str]:
        """Returns the processes that grew by more than the limit."""
        return [
            f"{growth.stage}'s {growth.role} grew by {growth.mib:g} MiB in {growth.minutes:g} minutes; the limit is "
            f"{GROWTH_LIMIT_MIB:g}"
            for growth in self.growths()
            if growth.mib > GROWTH_LIMIT_MIB
        ]

    def report(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Returns stage -> role -> the number of processes, the highest memory of any of them in MiB, and the minutes
        and growth of the one that was watched longest. Both are None if no process was watched for long enough."""
        table: dict[str, dict[str, dict[str, float | None]]] = defaultdict(dict)
        growths = self.growths()
        for stage, role in sorted({key[:2] for key in self._lives}):
            lives = [samples for key, samples in self._lives.items() if key[:2] == (stage, role)]
            ones = [growth for growth in growths if (growth.stage, growth.role) == (stage, role)]
            longest = max(ones, key=lambda growth: growth.minutes, default=None)
            table[stage][role] = {
                "processes": len(lives),
                "most_mib": round(max(sample.rss_mib for samples in lives for sample in samples)),
                "longest_watched_minutes": longest and longest.minutes,
                "grown_mib": longest and longest.mib,
            }
        return dict(table)


def grown_mib(samples: Sequence[Sample]) -> float:
    """Returns the median of the last quarter minus that of the first. Raises ValueError for fewer than four samples."""
    quarter = len(samples) // 4
    if quarter == 0:
        raise ValueError("growth needs four samples")
    first, last = samples[:quarter], samples[-quarter:]
    return statistics.median(one.rss_mib for one in last) - statistics.median(one.rss_mib for one in first)
