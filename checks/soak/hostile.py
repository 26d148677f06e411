"""`make soak HOSTILE=1`: well-behaved clients ask for text and speech while 32 hostile clients (callers.py) attack.
Then a gateway stands in front of the stages, and each attack of http_attacks.py runs for a while.

It fails if
- under an attack on the gateway, a chat fails or the p95 of chats is more than twice as long, or /health takes more
  than half a second;
- a well-behaved call fails, or gets a different answer than an equal call of the same phase (judge lists the phases);
- the p95 latency of a kind of well-behaved calls is more than twice its p95 without attack;
- the memory of the entry and its decoders grows by more than 1.1 times its byte budget;
- a hostile call ends with INTERNAL;
- a stage dies, or afterwards still holds requests or bytes.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from benchmarks.harness.interleave import quantile
from benchmarks.pipeline.breakdown import PARTS, split
from checks.soak.attackers import Attackers
from checks.soak.http_attacks import ATTACKS, judge as judge_gateway, measure
from checks.soak.load import KINDS

from omni_proto.client import AsyncOmniClient, OmniRequestError
from omni_proto.pod_contract import StageMetric
from support.peers.gateways import run_gateway
from support.processes.stage_processes import StageProcess, chain_configs, pick_chain_ports

BUDGET = 1 << 30
WELL_BEHAVED = ("text", "speech")
SLOWER = 2.0
MODEL = {"maxModelLen": 2048, "maxNumSeqs": 8, "dtype": "float32", "kvCacheMemoryMib": 64, "enforceEager": True}
SETTINGS = {"limits": {"maxInflightBytes": BUDGET}, "timeouts": {"step": 10.0, "drainNotice": 0.5, "request": 60.0}}
SAMPLE_S = 0.25
IDLE_S = 20.0
ATTACK_S = 20.0
"""About how many seconds each round's attack lasts. Before it, well-behaved clients run alone for a third of that."""


@dataclass
class Outcomes:
    """The results of one kind of well-behaved client: `seconds` has the duration of each call, by phase."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """For each call, how long each part of the entry's work took, in ms (benchmarks/pipeline/breakdown.py)."""
    problems: list[str] = field(default_factory=list)

    def p95(self, phase: str) -> float:
        """Returns the p95 of the calls' seconds; infinite if no call of the phase succeeded."""
        return quantile(self.seconds.get(phase) or [math.inf], 0.95)

    def p95_parts_ms(self, phase: str) -> dict[str, int]:
        """Returns the p95 of each part separately, in ms. It shows where slow calls wait."""
        return {part: round(quantile([one[part] for one in self.parts[phase]], 0.95)) for part in PARTS}


async def call(client: AsyncOmniClient, kind: str, phase: str, until: float, well_behaved: Outcomes) -> None:
    """Sends the same request repeatedly until the time `until`, and records times and problems in `well_behaved`."""
    arguments: dict[str, Any] = KINDS[kind].arguments
    expected: str | None = None
    while time.monotonic() < until:
        began, began_unix = time.monotonic(), time.time_ns()
        try:
            result = await client.run(**arguments, sampling=KINDS[kind].sampling, timeout=30)
        except OmniRequestError as error:
            well_behaved.problems.append(f"{kind}, {phase}: {error.code.name} {error}"[:300])
            continue
        well_behaved.seconds.setdefault(phase, []).append(time.monotonic() - began)
        timings = result.finished["thinker"].timings
        well_behaved.parts.setdefault(phase, []).append(split(timings, began_unix))
        expected = expected or result.text
        if result.text != expected:
            well_behaved.problems.append(f"{kind}, {phase}: another answer")


def rss_mib(process: StageProcess) -> float:
    """Returns the resident memory of the stage server and its decoder processes, in MiB.

    Shared pages count once (PSS). The engine and its template are left out, since the model and vLLM use their memory.
    """
    server = psutil.Process(process.pid)
    decoders = [child for child in server.children() if "omni_stage.decoding.worker" in _command(child)]
    total = 0.0
    for one in (server, *decoders):
        with suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / (1 << 20)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


class CpuLog:
    """CPU seconds of each group of processes: stages, engines, decoders, both kinds of clients, and the machine."""

    def __init__(self, stages: dict[str, StageProcess], callers: int) -> None:
        self._roots = {name: stage.pid for name, stage in stages.items()} | {"honest": os.getpid()}
        self._callers = callers
        self._last: dict[tuple[str, int], float] = {}
        self._used: Counter[str] = Counter()
        self._seconds = 0.0
        self._sampled: float | None = None

    def begin(self) -> None:
        """Begins a measured interval. CPU time used before its first sample does not count."""
        self._last.clear()
        self._sampled = None

    def sample(self) -> None:
        """Samples every process. One that ends between two samples is counted up to the earlier sample."""
        at = time.monotonic()
        first = self._sampled is None
        self._seconds += 0.0 if self._sampled is None else at - self._sampled
        self._sampled = at
        now = [(name, psutil.Process(pid)) for name, pid in self._roots.items()]
        with suppress(psutil.NoSuchProcess):
            now.append(("hostile", psutil.Process(self._callers)))
        for name in ("thinker", "talker", "token2wav"):
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(self._roots[name]).children(recursive=True)
                now += [
                    ("decoders" if "omni_stage.decoding.worker" in _command(one) else f"{name}, engine", one)
                    for one in children
                ]
        now.append(("machine", psutil.Process(1)))
        for name, one in now:
            with suppress(psutil.NoSuchProcess):
                spent = sum(psutil.cpu_times()[:3]) if name == "machine" else sum(one.cpu_times()[:2])
                # A process that is new since the last sample counts from its start.
                self._used[name] += 0.0 if first else spent - self._last.get((name, one.pid), 0.0)
                self._last[name, one.pid] = spent

    def shares(self) -> dict[str, float]:
        """Returns how many cores each group used on average, of os.cpu_count(). `machine` counts all processes."""
        return {name: round(spent / max(self._seconds, SAMPLE_S), 2) for name, spent in self._used.items()}


async def run_hostile(minutes: float, folder: Path, media_share: float | None = None) -> dict[str, object]:
    """Runs the soak with hostile clients. Returns the report: `problems` and `slow` are empty if all went well.

    `media_share` is the thinker's engineArgs.maxMediaShare; None leaves the default.
    """
    from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

    checkpoint = write_tiny_checkpoint(folder / "model", dtype="float32")
    configs = chain_configs(pick_chain_ports(), model={"path": str(checkpoint)}, engineArgs=MODEL, **SETTINGS)
    if media_share is not None:  # only the thinker reads media
        thinker = configs["thinker"]
        arguments = thinker.engine_args.model_copy(update={"max_media_share": media_share})
        configs["thinker"] = thinker.model_copy(update={"engine_args": arguments})
    with ExitStack() as stack:
        stages = {name: stack.enter_context(StageProcess([config], folder)) for name, config in configs.items()}
        for stage in stages.values():
            stage.start(wait=False)
        for stage in stages.values():
            await asyncio.to_thread(stage.wait_ready)
        report: dict[str, Any] = {"media_share": media_share, **await judge(minutes, stages)}
        with run_gateway(folder, f"m=grpc://127.0.0.1:{stages['thinker'].ports['thinker']['grpc']}") as gateway:
            report["gateway"] = await measure(gateway.url, minutes * 60 / len(ATTACKS), chats=True)
        problems, slow = judge_gateway(report["gateway"])
        report["problems"] += problems + await asyncio.to_thread(leftovers, stages)
        report["slow"] += slow
        return report


async def judge(minutes: float, stages: dict[str, StageProcess]) -> dict[str, object]:
    """Runs well-behaved clients alone and under attack in turn, and returns the report.

    The phases "alone" and "attacked" alternate, so that other load on the machine affects both. Before them is the
    phase "first", and after them the phase "afterwards".
    """
    entry = stages["thinker"]
    target = f"127.0.0.1:{entry.ports['thinker']['grpc']}"
    well_behaved = {kind: Outcomes() for kind in WELL_BEHAVED}
    rounds = max(1, round(minutes * 60 / ATTACK_S))
    seconds = minutes * 60 / rounds
    left: list[str] = []
    async with AsyncOmniClient(target) as client, Attackers(target) as attackers:

        async def phase(name: str, seconds: float) -> None:
            until = time.monotonic() + seconds
            await asyncio.gather(*(call(client, kind, name, until, well_behaved[kind]) for kind in WELL_BEHAVED))

        async def sample_beside(name: str, *work: Coroutine[None, None, None]) -> None:
            nonlocal peak
            cores[name].begin()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one) for one in work]
                while not all(task.done() for task in tasks):
                    peak = max(peak, await asyncio.to_thread(rss_mib, entry))
                    await asyncio.to_thread(cores[name].sample)
                    await asyncio.sleep(SAMPLE_S)

        await phase("first", 5)
        before = peak = rss_mib(entry)
        cores = {name: CpuLog(stages, attackers.pid) for name in ("alone", "attacked")}
        for _ in range(rounds):
            # Sampling takes CPU time itself, so both phases sample.
            await sample_beside("alone", phase("alone", seconds / 3))
            await sample_beside("attacked", phase("attacked", seconds), attackers.attack(seconds))
            left += await asyncio.to_thread(leftovers, stages)
        await phase("afterwards", 3)
    problems = [problem for one in well_behaved.values() for problem in one.problems]
    outcomes = dict(sorted(attackers.outcomes.items()))
    problems += [f"{count} hostile calls ended with {code}" for code, count in outcomes.items() if "INTERNAL" in code]
    slow = [
        f"{kind}: p95 {one.p95('attacked'):.3f} s, alone {one.p95('alone'):.3f} s"
        for kind, one in well_behaved.items()
        if one.p95("attacked") > SLOWER * one.p95("alone")
    ]
    budget_mib = BUDGET / (1 << 20)
    if peak - before > 1.1 * budget_mib:
        problems.append(f"the entry grew by {peak - before:.0f} MiB; its budget is {budget_mib:.0f} MiB")
    problems += [f"stage {name} ended" for name, stage in stages.items() if stage.poll() is not None]
    problems += left
    return {
        "minutes": minutes,
        "hostile": outcomes,
        "honest": {
            kind: {
                phase: {
                    "calls": len(times),
                    "median_s": round(statistics.median(times), 3),
                    "p95_s": round(one.p95(phase), 3),
                    "entry_p95_ms": one.p95_parts_ms(phase),
                }
                for phase, times in one.seconds.items()
            }
            for kind, one in well_behaved.items()
        },
        "cores": {name: log.shares() for name, log in cores.items()},
        "entry_rss_mib": {"before": round(before), "peak": round(peak), "budget": round(budget_mib)},
        "slow": slow,
        "problems": problems[:50],
    }


def leftovers(stages: dict[str, StageProcess]) -> list[str]:
    """Returns the gauges of requests and bytes that are not 0 within IDLE_S although no client sends anything."""
    deadline = time.monotonic() + IDLE_S
    names = (StageMetric.INFLIGHT_REQUESTS, StageMetric.INFLIGHT_BYTES)
    while True:
        left = [
            f"{stage}: {name} is {value:g}"
            for stage, process in stages.items()
            for name in names
            if process.poll() is None and (value := process.metric(stage, name))
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)
