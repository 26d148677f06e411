"""Runs paced pipelines as processes on this machine, sends requests to them, and reads their processor time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.paced.ideal import Chunk, Outcome
from benchmarks.pipeline.sides import Pipeline, connect
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import AudioChunk, TextDelta
from omni_proto.pipeline import load_pipeline
from omni_proto.stage_config import EdgeMode

SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "sim-omni.yaml"
PROMPT = "Please explain to me why the sky is blue, in a few sentences that a child can follow. " * 2
"""A prompt of about 43 tokens."""
TEXT_TOKENS, SPEECH_S = 150, 20
_BYTES_PER_S = 2 * 24_000


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that were sent together."""

    outcomes: list[Outcome]
    wall_s: float
    cpu_s: dict[str, float]
    """Processor seconds by process, including the client."""

    @property
    def cores(self) -> float:
        """Cores that all processes together kept busy, on average."""
        return sum(self.cpu_s.values()) / self.wall_s


@contextmanager
def serve(table: Path, mode: EdgeMode) -> Iterator[LocalPipeline]:
    """Yields a paced pipeline that is ready and whose edges have this mode. It ends with the block."""
    pipeline = load_pipeline(SAMPLE)
    for stage in pipeline.spec.stages:
        stage.inputs[:] = [edge.model_copy(update={"mode": mode}) for edge in stage.inputs]
    with LocalPipeline(pipeline, LocalOptions(model_path=str(table))) as local:
        with make_progress(Console(quiet=True), [stage.name for stage in pipeline.spec.stages]) as progress:
            local.start(progress)
        yield local


async def send(pipeline: Pipeline, count: int, frames: int) -> Group:
    """Send `count` equal requests at the same time. Returns their outcomes and each process's processor time."""
    return await send_at(pipeline, [0.0] * count, frames)


async def send_at(pipeline: Pipeline, starts: Sequence[float], frames: int) -> Group:
    """Send equal requests at these times, in seconds from now. Returns the same as `send`."""
    processes = {stage: psutil.Process(pid) for stage, pid in pipeline.pids.items()}
    processes["client"] = psutil.Process(os.getpid())
    before = {name: _cpu(process) for name, process in processes.items()}
    began = time.perf_counter()
    outcomes = await asyncio.gather(*(_ask(pipeline, frames, *each) for each in enumerate(starts)))
    wall = time.perf_counter() - began
    return Group(outcomes, wall, {name: _cpu(process) - before[name] for name, process in processes.items()})


async def _ask(pipeline: Pipeline, frames: int, seed: int, start: float) -> Outcome:
    sampling = {
        "thinker": {"max_tokens": TEXT_TOKENS, "ignore_eos": True},
        "talker": {"max_tokens": frames, "ignore_eos": True},
    }
    await asyncio.sleep(start)
    outcome, began = Outcome(), time.perf_counter()
    async for event in pipeline.client.generate(text=PROMPT, sampling=sampling, seed=seed):
        now = time.perf_counter() - began
        if isinstance(event, TextDelta):
            outcome.first_text = outcome.first_text or now
            outcome.last_text = now
        elif isinstance(event, AudioChunk) and event.data:
            outcome.chunks.append(Chunk(now, len(event.data) / _BYTES_PER_S))
    return outcome


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


__all__ = ["PROMPT", "SPEECH_S", "TEXT_TOKENS", "Group", "connect", "send", "send_at", "serve"]
