"""Runs replicas of paced stages as processes of this machine, and sends requests to them."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omni_cli.local.pipeline import STAGE_COMMAND, compile_local, stage_files
from omni_cli.local.ports import LOOPBACK, pick_ports
from omni_cli.local.processes import SessionGuard, StageProcess, stop_processes
from omni_proto.client import AsyncOmniClient, AudioChunk, TextDelta
from omni_proto.pipeline import OmniPipeline, load_pipeline
from omni_stage.models.sim.tables import BUILT_IN

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "sim-omni.yaml"
TABLE = "qwen2.5-omni-7b-h100"
STEP_MS = 40.0
SLOTS = 4
"""Requests that a replica works on at a time; others wait in its queue."""
START_S = 180.0


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a replica is."""

    slots: int
    """Requests that it works on at a time."""
    fields: Mapping[str, Any]
    """Fields of its stage in the table."""


def step_of(step_ms: float, slots: int = SLOTS) -> Speed:
    """Returns the speed of a thinker or talker whose steps take this time."""
    return Speed(slots, {"stepMs": {"1": step_ms}, "promptTokenMs": 0.0})


def window_of(window_ms: float, slots: int) -> Speed:
    """Returns the speed of a decoder whose windows take this time."""
    return Speed(slots, {"frameMs": {"1": 0.001}, "leastMs": window_ms})


@dataclass(slots=True)
class Run:
    """What a caller saw."""

    wall_s: float
    latencies_s: list[float] = field(default_factory=list)
    output_at: list[tuple[float, float]] = field(default_factory=list)
    """When each token of text or piece of audio came, in seconds since the run's start; and its tokens or bytes."""


@contextmanager
def serve(replicas: Mapping[str, Sequence[Speed]]) -> Iterator[list[str]]:
    """Yields the addresses of the entry's replicas, in a pipeline of these stages. All end with the block."""
    pipeline = load_pipeline(SAMPLE)
    pipeline.spec.stages[:] = [stage for stage in pipeline.spec.stages if stage.name in replicas]
    free = iter(pick_ports(sum(map(len, replicas.values()))))
    ports = {name: [next(free) for _ in speeds] for name, speeds in replicas.items()}
    guard, processes = SessionGuard(), list[StageProcess]()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            for name, speeds in replicas.items():
                for speed, port in zip(speeds, ports[name], strict=True):
                    used = {stage: speed if stage == name else of[0] for stage, of in replicas.items()}
                    processes.append(_start(Path(temporary) / str(port), pipeline, name, used, ports, port, guard))
            for process in processes:
                _wait_ready(process)
            yield [f"{LOOPBACK}:{port}" for port in ports[pipeline.spec.stages[0].name]]
        finally:
            stop_processes(processes, 0.0)
            guard.close()


def _start(
    folder: Path,
    pipeline: OmniPipeline,
    name: str,
    speeds: Mapping[str, Speed],
    ports: Mapping[str, Sequence[int]],
    port: int,
    guard: SessionGuard,
) -> StageProcess:
    table = json.loads((BUILT_IN / TABLE / "config.json").read_text())
    for stage, speed in speeds.items():
        table[stage] |= speed.fields
    (folder / "table").mkdir(parents=True)
    (folder / "table" / "config.json").write_text(json.dumps(table))
    compiled = compile_local(pipeline, str(folder / "table"), {stage: one[0] for stage, one in ports.items()})
    config = next(one for one in compiled if one.stage == name)
    below = [
        edge.model_copy(update={"target": "ipv4:" + ",".join(f"{LOOPBACK}:{one}" for one in ports[edge.stage])})
        for edge in config.downstream
    ]
    arguments = config.engine_args.model_copy(update={"max_num_seqs": speeds[name].slots})
    listen = config.listen.model_copy(update={"grpc_port": port})
    config = config.model_copy(update={"downstream": below, "engine_args": arguments, "listen": listen})
    files = stage_files(folder, folder, name)
    files.config.write_text(config.to_yaml(), encoding="utf-8")
    return StageProcess(name, STAGE_COMMAND, files, guard)


def _wait_ready(process: StageProcess) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.read_address() is not None:
            return
        if process.poll() is not None:
            raise RuntimeError("\n".join(process.read_log_tail(20)))
        time.sleep(0.1)
    raise RuntimeError(f"a replica is not ready after {START_S:g} s")


class Caller:
    """A client of the replicas. It knows nothing of other callers."""

    def __init__(self, pods: Sequence[str], *, round_robin: bool = False, speaks: bool = False) -> None:
        """speaks: whether requests ask for audio too, of one frame for each token. Only that counts as output then."""
        self._speaks = speaks
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

    async def ask(self, tokens: int, output_at: list[tuple[float, float]], began: float) -> float:
        """Send a request for so many tokens. Returns its seconds."""
        start = time.perf_counter()
        stages = ("thinker", "talker") if self._speaks else ("thinker",)
        sampling = {stage: {"max_tokens": tokens, "ignore_eos": True} for stage in stages}
        text, modalities = f"question {random.random()}", ("text", "audio") if self._speaks else ("text",)
        async for event in self.client.generate(text=text, sampling=sampling, modalities=modalities):
            now = time.perf_counter() - began
            if isinstance(event, AudioChunk):
                output_at.append((now, len(event.data)))
            elif isinstance(event, TextDelta) and not self._speaks:
                output_at.append((now, 1))
        return time.perf_counter() - start


async def keep_busy(callers: Sequence[Caller], costs: Sequence[int], at_once: int) -> Run:
    """Send requests of these costs, in this order, at_once at a time, by callers in turn."""
    began, waiting, run = time.perf_counter(), iter(list(enumerate(costs))), Run(0.0)

    async def work() -> None:
        for number, tokens in waiting:
            run.latencies_s.append(await callers[number % len(callers)].ask(tokens, run.output_at, began))

    await asyncio.gather(*(work() for _ in range(at_once)))
    run.wall_s = time.perf_counter() - began
    return run


async def arrive(caller: Caller, costs: Sequence[int], per_second: float) -> Run:
    """Send requests of these costs at random times, whether earlier ones have ended or not."""
    began, run, draw = time.perf_counter(), Run(0.0), random.Random(5)

    async def one(tokens: int) -> None:
        run.latencies_s.append(await caller.ask(tokens, run.output_at, began))

    async with asyncio.TaskGroup() as group:
        for tokens in costs:
            group.create_task(one(tokens))
            await asyncio.sleep(draw.expovariate(per_second))
    run.wall_s = time.perf_counter() - began
    return run
