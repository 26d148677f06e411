"""Runs replicas of one paced stage as processes of this machine, and sends requests to them."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omni_cli.local.pipeline import STAGE_COMMAND, compile_local, stage_files
from omni_cli.local.processes import SessionGuard, StageProcess, stop_processes
from omni_proto.client import AsyncOmniClient, TextDelta
from omni_proto.pipeline import load_pipeline
from omni_stage.models.sim.tables import BUILT_IN

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "sim-omni.yaml"
TABLE = "qwen2.5-omni-7b-h100"
STEP_MS = 40.0
SLOTS = 4
"""Requests that a replica works on at a time; others wait in its queue."""
START_S = 180.0


@dataclass(slots=True)
class Run:
    """What a caller saw."""

    wall_s: float
    latencies_s: list[float] = field(default_factory=list)
    tokens_at: list[float] = field(default_factory=list)
    """When each token came, in seconds since the run's start."""


@contextmanager
def serve(steps_ms: Sequence[float]) -> Iterator[list[str]]:
    """Yields the addresses of replicas whose steps take these times. They end with the block."""
    guard, processes = SessionGuard(), list[StageProcess]()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            for number, step_ms in enumerate(steps_ms):
                processes.append(_start(Path(temporary) / str(number), step_ms, guard))
            yield [f"127.0.0.1:{_wait_ready(process)}" for process in processes]
        finally:
            stop_processes(processes, 0.0)
            guard.close()


def _start(folder: Path, step_ms: float, guard: SessionGuard) -> StageProcess:
    table = json.loads((BUILT_IN / TABLE / "config.json").read_text())
    table["thinker"] |= {"stepMs": {"1": step_ms}, "promptTokenMs": 0.0}
    (folder / "table").mkdir(parents=True)
    (folder / "table" / "config.json").write_text(json.dumps(table))
    pipeline = load_pipeline(SAMPLE)
    thinker = pipeline.spec.stages[0]
    arguments = thinker.engine_args.model_copy(update={"max_num_seqs": SLOTS})
    thinker = thinker.model_copy(update={"engine_args": arguments})
    pipeline.spec.stages[:] = [thinker]
    (config,) = compile_local(pipeline, str(folder / "table"), {thinker.name: 0})
    files = stage_files(folder, folder, config.stage)
    files.config.write_text(config.to_yaml(), encoding="utf-8")
    return StageProcess(config.stage, STAGE_COMMAND, files, guard)


def _wait_ready(process: StageProcess) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (address := process.read_address()) is not None:
            return address.grpc
        if process.poll() is not None:
            raise RuntimeError("\n".join(process.read_log_tail(20)))
        time.sleep(0.1)
    raise RuntimeError(f"a replica is not ready after {START_S:g} s")


class Caller:
    """A client of the replicas. It knows nothing of other callers."""

    def __init__(self, pods: Sequence[str], *, round_robin: bool = False) -> None:
        self.client = AsyncOmniClient("ipv4:" + ",".join(pods))
        if round_robin:
            self.client._pool.resolve = None  # gRPC's own policy by name, as before

    async def connect(self, pods: int) -> None:
        """Send requests until all replicas are connected."""
        while True:
            await asyncio.gather(*(self.ask(2, [], 0.0) for _ in range(2)))
            if self.client._pool.resolve is None or self.client._pool.connected == pods:
                return
            await asyncio.sleep(0.1)

    async def ask(self, tokens: int, tokens_at: list[float], began: float) -> float:
        """Send a request for so many tokens. Returns its seconds."""
        start = time.perf_counter()
        sampling = {"thinker": {"max_tokens": tokens, "ignore_eos": True}}
        text = f"question {random.random()}"
        async for event in self.client.generate(text=text, sampling=sampling, modalities="text"):
            if isinstance(event, TextDelta):
                tokens_at.append(time.perf_counter() - began)
        return time.perf_counter() - start


async def keep_busy(callers: Sequence[Caller], costs: Sequence[int], at_once: int) -> Run:
    """Send requests of these costs, in this order, at_once at a time, by callers in turn."""
    began, waiting, run = time.perf_counter(), iter(list(enumerate(costs))), Run(0.0)

    async def work() -> None:
        for number, tokens in waiting:
            run.latencies_s.append(await callers[number % len(callers)].ask(tokens, run.tokens_at, began))

    await asyncio.gather(*(work() for _ in range(at_once)))
    run.wall_s = time.perf_counter() - began
    return run


async def arrive(caller: Caller, costs: Sequence[int], per_second: float) -> Run:
    """Send requests of these costs at random times, whether earlier ones have ended or not."""
    began, run, draw = time.perf_counter(), Run(0.0), random.Random(5)

    async def one(tokens: int) -> None:
        run.latencies_s.append(await caller.ask(tokens, run.tokens_at, began))

    async with asyncio.TaskGroup() as group:
        for tokens in costs:
            group.create_task(one(tokens))
            await asyncio.sleep(draw.expovariate(per_second))
    run.wall_s = time.perf_counter() - began
    return run
