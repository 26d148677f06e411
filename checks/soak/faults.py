"""Injects faults one after another, and repairs each before the next."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable

from checks.soak.pipeline import SoakPipeline

from support.machine.tcp_proxy import Toxics

PAUSE_S = (1.0, 4.0)
LASTS_S = (0.5, 4.0)
EXIT_S = 60.0
NETWORK = {
    "latency": Toxics(latency_s=0.05),
    "bandwidth": Toxics(bytes_per_s=20_000),
    "slices": Toxics(slice_bytes=16),
    "stuck": Toxics(paused=True),
    "swallowed": Toxics(stop_after=2_000),
    "half-open": Toxics(half_open=True),
    "reset": Toxics(reset_after=2_000),
    "refused": Toxics(refuse=True),
}
PROCESS_SHARE = 0.12
"""The share of process faults. Most of them need a restart of many seconds, so most faults are network faults."""


class FaultHand:
    """Injects and repairs faults until it is stopped."""

    def __init__(self, pipeline: SoakPipeline, rng: random.Random, *, kills: bool = True) -> None:
        """Without `kills` only networks fail, and every process lives as long as the soak."""
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._pipeline = pipeline
        self._rng = rng
        self._process_share = PROCESS_SHARE if kills else 0.0
        self._process_faults: dict[str, Callable[[str], Awaitable[None]]] = {
            "engine killed": self._kill_engine,
            "engine stopped for a while": self._stop_engine,
            "stage killed": self._kill_stage,
            "stage drained": self._drain_stage,
        }

    async def work(self, stop: asyncio.Event) -> None:
        """Injects one fault at a time until `stop` is set. Every fault is repaired when it returns."""
        while not stop.is_set():
            stage = self._rng.choice(list(self._pipeline.processes))
            if self._rng.random() < self._process_share:
                name = self._rng.choice(list(self._process_faults))
                self.counts[name] += 1
                await self._process_faults[name](stage)
            else:
                await self._break_network(stage)
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def _break_network(self, stage: str) -> None:
        proxy = self._pipeline.proxies[stage]
        name = self._rng.choice([*NETWORK, "cut"])
        self.counts[name] += 1
        if name == "cut":
            proxy.cut()
            return
        proxy.toxics = NETWORK[name]
        if name == "refused":
            proxy.cut()
        await asyncio.sleep(self._rng.uniform(*LASTS_S))
        proxy.heal()

    async def _kill_engine(self, stage: str) -> None:
        process = self._pipeline.processes[stage]
        os.kill(process.engine_core(), signal.SIGKILL)
        await self._expect_exit(stage, "engine killed", 70)

    async def _stop_engine(self, stage: str) -> None:
        core = self._pipeline.processes[stage].engine_core()
        os.kill(core, signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*LASTS_S))
        os.kill(core, signal.SIGCONT)

    async def _kill_stage(self, stage: str) -> None:
        self._pipeline.processes[stage].send(signal.SIGKILL)
        await asyncio.to_thread(self._pipeline.restart, stage)

    async def _drain_stage(self, stage: str) -> None:
        self._pipeline.processes[stage].send(signal.SIGTERM)
        await self._expect_exit(stage, "drained", 0)

    async def _expect_exit(self, stage: str, what: str, expected: int) -> None:
        process = self._pipeline.processes[stage]
        try:
            code: int | str = await asyncio.to_thread(process.wait, EXIT_S + 60.0)
        except subprocess.TimeoutExpired:
            code = "none"
        if code != expected:
            self.problems.append(f"{stage}, {what}: exit code {code}, expected {expected}")
        await asyncio.to_thread(self._pipeline.restart, stage)
