"""Feeds a stage's engine row by row, as a stage server does, and reads the internal tables of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import count, pairwise
from typing import Any

import torch

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.protocol import StageEngine
from omni_stage.engine.requests.sampling import resolve_sampling
from omni_stage.models.component import EdgeStream, StageRequest, UserPrompt
from support.engines.omni_stages import Collected
from support.processes.polling import until

_ids = count()
HEAD = ("mrope_positions", "mrope_delta")


def stage_request(
    engine: StageEngine, source: UserPrompt | EdgeStream, voice: str = "", **sampling: Any
) -> StageRequest:
    """Returns a request. Default for sampling: the component's."""
    resolved = resolve_sampling(
        SamplingDefaults(**sampling),
        seed=None,
        config_default=SamplingDefaults(),
        component_default=engine.component.default_sampling,
    )
    return StageRequest(f"stream-{next(_ids)}", source, resolved, voice, want_tensors=True)


async def collect(engine: StageEngine, request: StageRequest) -> Collected:
    """Runs one request on a stage. Returns everything that the stage returned."""
    collected = Collected()
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            collected.add(step)
    return collected


async def run_live(
    thinker: StageEngine,
    talker: StageEngine,
    prompt: UserPrompt,
    thinker_sampling: Mapping[str, Any],
    talker_sampling: Mapping[str, Any],
) -> tuple[Collected, Collected, list[str]]:
    """Runs thinker and talker concurrently. Returns the output of each, and the order in which they made tokens."""
    stream, wrote = EdgeStream(), Collected()
    order: list[str] = []

    async def think() -> None:
        async with aclosing(thinker.generate(stage_request(thinker, prompt, **thinker_sampling))) as steps:
            async for step in steps:
                wrote.add(step)
                order.extend("thinker" for _ in step.token_ids)
                stream.put(step.tensors, step.complete_tensors)
        stream.end()

    async def talk() -> Collected:
        spoke = Collected()
        async with aclosing(talker.generate(stage_request(talker, stream, **talker_sampling))) as steps:
            async for step in steps:
                spoke.add(step)
                order.extend("talker" for _ in step.token_ids)
        return spoke

    _, spoke = await asyncio.gather(think(), talk())
    return wrote, spoke, order


def put_cut(stream: EdgeStream, tensors: Mapping[str, torch.Tensor], cuts: Sequence[int]) -> None:
    """Puts a thinker's tensors into the stream without waiting, with `x` cut at the rows `cuts`, and ends it."""
    stream.put({name: tensors[name] for name in HEAD}, HEAD)
    for begin, end in pairwise([0, *cuts, len(tensors["x"])]):
        stream.put({"x": tensors["x"][begin:end]})
    stream.end()


async def feed_slowly(stream: EdgeStream, tensors: Mapping[str, torch.Tensor], sizes: Sequence[int]) -> None:
    """Puts a thinker's tensors into the stream, with pauses between pieces of `x`, and ends the stream.

    The sizes of the pieces, in rows, cycle through `sizes`.
    """
    stream.put({name: tensors[name] for name in HEAD}, HEAD)
    begin, turn = 0, 0
    while begin < len(tensors["x"]):
        end = begin + sizes[turn % len(sizes)]
        stream.put({"x": tensors["x"][begin:end]})
        begin, turn = end, turn + 1
        await asyncio.sleep(0.005)
    stream.end()


def table_sizes(engine: Any) -> dict[str, int]:
    """Returns table -> number of its entries that belong to requests, for every table of an in-process engine.

    The number of used KV cache blocks has a minus sign.
    """
    llm = engine._core.llm
    core = llm.engine_core.engine_core
    scheduler, runner = core.scheduler, core.model_executor.driver_worker.worker.model_runner
    rows = runner._input_rows
    return {
        "frontend": len(llm.output_processor.request_states),
        "captures": len(llm.output_processor._captures),
        "sinks": len(llm._sinks),
        "sessions": len(llm._sessions),
        "scheduler": len(scheduler.requests),
        "waiting for input": scheduler.num_waiting_for_streaming_input,
        "runner": len(runner.requests),
        "rows": 0 if rows is None else len(rows._requests),
        "positions": len(runner._mrope),
        "cached prefixes": 0 if scheduler._prefixes is None else len(scheduler._prefixes._open),
        "used blocks": scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        - scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        + 1,
    }


async def until_empty(engine: Any) -> dict[str, int]:
    """Waits until the tables are empty. Returns the tables that still have entries; {} if none has."""

    def left() -> dict[str, int]:
        return {name: number for name, number in table_sizes(engine).items() if number}

    with suppress(TimeoutError):
        await until(lambda: not left())
    return left()


def count_preemptions(engine: Any) -> list[str]:
    """Returns a list that gets the ID of each request that the engine preempts from now on."""
    scheduler = engine._core.llm.engine_core.engine_core.scheduler
    preempt, seen = scheduler._preempt_request, []

    def note(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = note
    return seen
