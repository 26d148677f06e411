"""Compares vllm-omni with our pipeline, in turn: the same tiny Qwen2.5-Omni on the same machine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.harness.interleave import take_turns
from benchmarks.harness.report import Options, Report
from benchmarks.peer.environment import REQUIREMENTS, install
from benchmarks.peer.figures import (
    JOBS,
    LIMITS,
    OURS,
    STARTS,
    Outcome,
    Reference,
    Start,
    find_ratios,
    job_rows,
    parse_references,
    start_rows,
)
from benchmarks.peer.sides import Ours, Peer, Side, describe_start
from benchmarks.pipeline.sides import connect, start_pipeline
from benchmarks.pipeline.work import TALKER_TOKENS, THINKER_TOKENS
from omni_cli.local.pipeline import LocalPipeline

ROUNDS = 5
AT_ONCE = (1, 4, 8)
NOTES = [
    f"{' and '.join(REQUIREMENTS)}, in a separate virtual environment, on a CPU platform that "
    "benchmarks/peer/plugin adds through its entry point. Our side is manifests/samples/tiny-omni.yaml.",
    f"One seeded Qwen2.5-Omni in float32, with the published ids of codec and speaker tokens: {THINKER_TOKENS} tokens "
    f"of text and {TALKER_TOKENS} codec tokens, greedy. One OpenMP thread per stage.",
    "Limits: concurrent requests in thinker, talker and token2wav. `its best`: for each figure, those of "
    "vllm-omni's limits that gave the smallest median.",
    "Processor time: all processes of a side, including its client.",
    "Codec tokens are compared as the audio stage gets them. `audio_of_its_length` counts the "
    "answers with as many samples as transformers makes for that prompt. First audio is left empty for a side if any "
    "of its requests got no audio.",
    "Memory is resident memory when ready, with shared pages counted once. Idle cores: the cores that the side "
    "keeps busy in the 3 s after that, without requests. vllm-omni's processes are suspended while another side is "
    "measured, so that their polling costs the other sides nothing.",
]


def measure(options: Options) -> Report:
    """Start the sides one after another, then send requests to them in turn. Returns the tables."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for each stage
    python = install()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = folder / "model"
        subprocess.run([sys.executable, "-m", "benchmarks.peer.checkpoint", str(checkpoint)], check=True)
        references = _run_reference(checkpoint)
        began = time.perf_counter()
        with start_pipeline("tiny-omni", checkpoint) as local:
            took = time.perf_counter() - began
            outcomes, starts = asyncio.run(_ask_all(local, took, python, checkpoint, references, options, folder))
    tables = {JOBS: job_rows(outcomes, references), STARTS: start_rows(starts)}
    return Report(tables, find_ratios(outcomes, starts, references), NOTES)


async def _ask_all(
    local: LocalPipeline,
    took: float,
    python: Path,
    checkpoint: Path,
    references: list[Reference],
    options: Options,
    folder: Path,
) -> tuple[dict[tuple[str, int], Outcome], dict[str, Start]]:
    outcomes: dict[tuple[str, int], Outcome] = defaultdict(Outcome)
    async with AsyncExitStack() as stack:
        pipeline = connect(local)
        stack.push_async_callback(pipeline.client.close)
        pids = list(pipeline.pids.values())
        sides: dict[str, Side] = {OURS: Ours(pipeline.client, pids)}
        starts = {OURS: await describe_start(pids, took)}
        for number, (name, limits) in enumerate(LIMITS.items()):
            began = time.perf_counter()
            peer = await Peer.start(python, checkpoint, limits, folder / f"peer-{number}")
            stack.push_async_callback(peer.close)
            starts[name] = await describe_start([peer.pid], time.perf_counter() - began)
            peer.suspend()
            sides[name] = peer
        for number in range(-1, options.rounds or ROUNDS):  # the first round warms up
            for count in AT_ONCE:
                for name in take_turns(list(sides), number):
                    made = await sides[name].ask(references[:count])
                    if number >= 0:
                        outcomes[name, count].rounds.append(made)
    return outcomes, starts


def _run_reference(checkpoint: Path) -> list[Reference]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "benchmarks.peer.reference", str(checkpoint)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **quiet})
    return parse_references(json.loads(made.stdout), TALKER_TOKENS)
