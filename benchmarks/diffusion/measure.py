"""Measures token2wav (a diffusion engine) and the talker (autoregressive) with 1, 4 and 16 concurrent requests."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.diffusion.figures import (
    AT_ONCE,
    EQUAL,
    MIXED,
    REQUESTS,
    TABLE,
    TALKER,
    Side,
    find_ratios,
    make_rows,
    pick_lengths,
    split_groups,
)
from benchmarks.harness.interleave import time_rounds
from benchmarks.harness.memory import find_engines, peak_mib, reset_peak, rss_mib
from benchmarks.harness.report import Options, Report

if TYPE_CHECKING:
    from omni_proto.stage_config import StageConfig
    from omni_stage.engine.offline.stage_llm import StageLLM

ROUNDS = 5
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny-omni-full.yaml"
PROMPT_ROWS, REPLY_ROWS = 32, 8
"""Rows of the talker's input: those of the prompt, and those of the reply."""
ANY_CODE = 100
"""Upper bound of token2wav's random input codes, exclusive."""
NOTES = [
    f"Every side runs {REQUESTS} requests, at_once at a time. ratio_to_one_at_once is the median of the rounds' "
    "ratios.",
    "A tiny seeded checkpoint in float32 on the CPU, ten steps of the solver. On a CPU a batch saves only the fixed "
    "cost of a step; on a GPU it saves more.",
    "Memory is the resident memory of the engine's process. The imports take most of it. over_idle_mib is the memory "
    "that the requests added, including what the allocator had not returned after earlier rounds.",
]
Ask = Callable[[], Awaitable[object]]
"""Sends one request and waits for its end."""


def measure(options: Options) -> Report:
    """Returns one row for each side and number of concurrent requests."""
    from omni_stage.vllm_adapter.process.env import apply_environment

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    apply_environment()
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="omnipipeline-bench-") as folder:
        stack = AsyncExitStack()
        try:
            stages = runner.run(start_engines(Path(folder), stack))
            sides = run_sides(runner, stages, options.rounds or ROUNDS)
        finally:
            runner.run(stack.aclose())
    return Report({TABLE: make_rows(sides)}, find_ratios(sides), NOTES)


async def start_engines(folder: Path, stack: AsyncExitStack) -> dict[str, tuple[StageLLM, int]]:
    """Start token2wav and the talker on a new checkpoint. Returns both with their engines' process ids.

    `stack` shuts them down.
    """
    from omni_cli.local.pipeline import compile_local
    from omni_proto.pipeline import load_pipeline
    from omni_stage.engine.offline.stage_llm import StageLLM
    from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(folder / "model", seed=0)
    ports = dict.fromkeys(("thinker", "talker", "token2wav"), 0)
    stages: dict[str, tuple[StageLLM, int]] = {}
    for config in compile_local(load_pipeline(SAMPLE), str(folder / "model"), ports):
        if config.stage == "thinker":
            continue
        known = set(find_engines(os.getpid()))
        stage = StageLLM(_widen(config), in_process=False)
        stack.push_async_callback(stage.shutdown)
        await stage.start()
        (pid,) = set(find_engines(os.getpid())) - known
        stages[config.stage] = (stage, pid)
    return stages


def run_sides(
    runner: asyncio.Runner, stages: Mapping[str, tuple[StageLLM, int]], rounds: int
) -> dict[tuple[str, int], Side]:
    """Run every side `rounds` times, in turn. Returns the samples."""
    sides: dict[tuple[str, int], Side] = {}
    runs: dict[str, Callable[[], object]] = {}
    for name in (EQUAL, MIXED, TALKER):
        stage, pid = stages[TALKER if name == TALKER else "token2wav"]
        asks = [_ask_talker(stage, n) if name == TALKER else _ask_token2wav(stage, n) for n in pick_lengths(name)]
        for at_once in AT_ONCE:
            side = sides[name, at_once] = Side([], idle_mib=rss_mib(pid))
            runs[f"{name}, {at_once}"] = _make_run(runner, pid, split_groups(asks, at_once), side)
    seconds = time_rounds(runs, rounds)
    for (name, at_once), side in sides.items():
        side.seconds = seconds[f"{name}, {at_once}"]
        del side.latencies[:REQUESTS]  # those of the warm-up round
    return sides


def _make_run(runner: asyncio.Runner, pid: int, groups: Sequence[Sequence[Ask]], side: Side) -> Callable[[], None]:
    async def one(ask: Ask) -> None:
        began = time.perf_counter()
        await ask()
        side.latencies.append(time.perf_counter() - began)

    async def all_of_them() -> None:
        for group in groups:
            await asyncio.gather(*map(one, group))

    def run() -> None:
        reset_peak(pid)
        runner.run(all_of_them())
        side.peak_mib = max(side.peak_mib, peak_mib(pid))

    return run


def _ask_token2wav(stage: StageLLM, length: int) -> Ask:
    """Returns a request to token2wav with `length` codes."""
    from omni_stage.models.component import EdgeInput

    codes = torch.randint(ANY_CODE, (length,), generator=torch.Generator().manual_seed(length))
    return lambda: stage.generate(EdgeInput({"codes": codes}), seed=0)


def _ask_talker(stage: StageLLM, length: int) -> Ask:
    """Returns a request to the talker for exactly `length` codes. Its rows are as wide as those of the warm-up request,
    and have the same dtype."""
    from omni_proto.stage_config import SamplingDefaults
    from omni_stage.models.component import EdgeInput

    known = stage.engine.component.warmup_request().source
    if not isinstance(known, EdgeInput):
        raise TypeError("the talker reads tensors")
    x, rows = known.tensors["x"], PROMPT_ROWS + REPLY_ROWS
    source = EdgeInput(
        {
            "x": torch.randn(rows, x.shape[1], generator=torch.Generator().manual_seed(0)).to(x.dtype),
            "token_ids": torch.zeros(rows, dtype=torch.int64),
            "mrope_positions": torch.arange(PROMPT_ROWS)[:, None].repeat(1, 3),
            "mrope_delta": torch.zeros(1, dtype=torch.int64),
        }
    )
    sampling = SamplingDefaults(temperature=0.0, max_tokens=length, ignore_eos=True)
    return lambda: stage.generate(source, sampling)


def _widen(config: StageConfig) -> StageConfig:
    """Returns the configuration with max_num_seqs set to the most concurrent requests that any side sends."""
    arguments = config.engine_args.model_copy(update={"max_num_seqs": AT_ONCE[-1]})
    return config.model_copy(update={"engine_args": arguments})
