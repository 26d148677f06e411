"""Reads the processor time of a pipeline's stages, and computes from it how much audio the machine could make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from benchmarks.harness.report import Row


@dataclass(frozen=True, slots=True)
class Usage:
    """The processor time that the stages used, and how much audio they made with it."""

    cpu_s: Mapping[str, float]
    """Processor seconds, by stage."""
    wall_s: float
    audio_s: float
    cores: int

    @property
    def cores_used(self) -> float:
        """Cores that the stages kept busy on average."""
        return sum(self.cpu_s.values()) / self.wall_s

    @property
    def limit(self) -> float:
        """Seconds of audio per second that the machine's cores would make if no stage ever waited."""
        return self.cores * self.audio_s / sum(self.cpu_s.values())

    def rows(self, at_once: int) -> list[Row]:
        """Returns one row for each stage."""
        return [
            {
                "at_once": at_once,
                "stage": stage,
                "cores": round(cpu / self.wall_s, 2),
                "share_percent": round(100 * cpu / sum(self.cpu_s.values())),
                "cpu_s_per_audio_s": round(cpu / self.audio_s, 2),
            }
            for stage, cpu in self.cpu_s.items()
        ]


def read_cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """Returns the processor seconds so far of each stage: its stage server and all processes below it."""
    totals = {}
    for stage, pid in pids.items():
        server = psutil.Process(pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        totals[stage] = sum(time.user + time.system for time in times)
    return totals
