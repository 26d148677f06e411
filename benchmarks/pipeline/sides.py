"""Runs the sides as processes: a pipeline of stage servers, and transformers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.pipeline.work import SAMPLING, SEED, TALKER_TOKENS
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import AsyncOmniClient, AudioChunk, StageFinished
from omni_proto.pipeline import Stage, load_pipeline

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Answer:
    """Times of one request, in seconds since all requests of its group were sent."""

    done: float = 0.0
    first_audio: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    """Completion tokens by stage."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stage servers of one pipeline file."""

    client: AsyncOmniClient
    metrics_ports: Mapping[str, int]
    pids: Mapping[str, int]
    """Process ids of the stage servers, by stage."""

    async def ask(self, prompts: Sequence[str]) -> list[Answer]:
        """Send all prompts together. Returns their answers."""
        start = time.perf_counter()

        async def one(prompt: str) -> Answer:
            answer = Answer()
            async for event in self.client.generate(text=prompt, sampling=SAMPLING, seed=SEED):
                now = time.perf_counter() - start
                if isinstance(event, AudioChunk):
                    answer.first_audio = answer.first_audio or now
                elif isinstance(event, StageFinished):
                    answer.tokens[event.stage] = event.usage.completion_tokens
            answer.done = time.perf_counter() - start
            return answer

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def write_checkpoint(directory: Path, family: str = "qwen2_5_omni") -> None:
    """Write a family's tiny checkpoint, in a separate process."""
    command = [sys.executable, "-m", "omni_cli", "tiny-model", str(directory), "--seed", "0", "--family", family]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def start_pipeline(sample: str, checkpoint: Path, mode: str | None = None) -> Iterator[LocalPipeline]:
    """Yields the stage servers of manifests/samples/SAMPLE.yaml once they are ready. They end with the block.

    `mode`: the mode of every edge; None keeps the sample's.
    """
    pipeline = load_pipeline(ROOT / "manifests" / "samples" / f"{sample}.yaml")
    stages = pipeline.spec.stages
    if mode is not None:
        stages = [_set_mode(stage, mode) for stage in stages]
    pipeline = pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages})})
    with LocalPipeline(pipeline, LocalOptions(model_path=str(checkpoint))) as local:
        with make_progress(Console(stderr=True), [stage.name for stage in pipeline.spec.stages]) as progress:
            local.start(progress)
        yield local


def _set_mode(stage: Stage, mode: str) -> Stage:
    inputs = [edge.model_copy(update={"mode": mode}) for edge in stage.inputs]
    return stage.model_copy(update={"inputs": inputs})


def connect(local: LocalPipeline) -> Pipeline:
    """Returns a client of a running pipeline, and its stage servers' ports and process ids. Call it in the event loop
    that uses the client."""
    pids = {}
    for one in local.list_processes():
        command = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
        if b"omni_stage" in command and b"--config" in command:
            pids[Path(command[command.index(b"--config") + 1].decode()).stem] = one.pid
    metrics = {stage: address.metrics for stage, address in local.addresses.items()}
    return Pipeline(AsyncOmniClient(local.endpoint), metrics, pids)


class Reference:
    """transformers in a separate process."""

    def __init__(self, checkpoint: Path, family: str = "qwen2_5_omni") -> None:
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_WAIT_POLICY": "PASSIVE"}
        # One thread, as a stage has. Two are no faster for so small a model, and would spin on cores that others need.
        environment = {**os.environ, **quiet, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pipeline.reference", str(checkpoint), family],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._read()

    async def ask(self, prompts: Sequence[str], talker_tokens: int = TALKER_TOKENS) -> list[Answer]:
        """Send all prompts together. Returns their answers, which transformers makes one after another."""
        return await asyncio.to_thread(self._ask, prompts, talker_tokens)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _ask(self, prompts: Sequence[str], talker_tokens: int) -> list[Answer]:
        if self._process.stdin is None:
            raise RuntimeError("the reference has no stdin")
        self._process.stdin.write(json.dumps({"prompts": list(prompts), "talker_tokens": talker_tokens}) + "\n")
        self._process.stdin.flush()
        return [
            Answer(seconds, seconds, tokens={"thinker": thinker, "talker": talker})
            for seconds, thinker, talker in json.loads(self._read())
        ]

    def _read(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"the reference ended with {self._process.wait()}")
        return line
