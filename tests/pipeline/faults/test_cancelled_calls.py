"""Thousands of cancelled calls leak nothing in any stage: no memory, task or request."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress

import pytest

from omni_proto.client import AsyncOmniClient, AudioChunk
from support.processes.polling import PATIENCE_S, until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports
from support.stages.cheap_stages import WORD

pytestmark = pytest.mark.pipeline

WARM_UP, AT_ONCE = 1_500, 32
GROWTH = 1.05
EVENTS = 8
"""A call is cancelled within its first 20 ms, after 1 to 7 of its events, or at its first audio. Every call has at
least 7 events."""
GAUGES = ("omni_stage_inflight_requests", "omni_stage_inflight_bytes", "cheap_unfinished")


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageProcess]:
    """Three stages in one process, so that one RSS figure covers all."""
    configs = chain_configs(pick_chain_ports())
    with StageProcess(list(configs.values()), tmp_path_factory.mktemp("cancelled"), CHEAP) as process:
        yield process.start()


async def cancel_calls(client: AsyncOmniClient, count: int, rng: random.Random) -> int:
    """Runs and cancels calls. Returns how many ended by themselves first."""
    ended = 0
    numbers = iter(range(count))

    async def one() -> None:
        nonlocal ended
        # Most calls use only the first stage, to save time.
        modalities = () if rng.random() < 0.3 else ("text",)
        at_audio, stop_after = not modalities and rng.random() < 0.2, rng.randrange(EVENTS)
        at_once = stop_after == 0 and not at_audio
        sampling = {"thinker": {"max_tokens": 4, "top_k": 1}}
        async with aclosing(client.generate(raw_text="hello", modalities=modalities, sampling=sampling)) as events:
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.uniform(0.0, 0.02) if at_once else PATIENCE_S):
                    async for event in events:
                        stop_after -= 1
                        if isinstance(event, AudioChunk) if at_audio else stop_after == 0:
                            return
                    ended += 1

    async def worker() -> None:
        for _ in numbers:
            await one()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return ended


async def settle(process: StageProcess) -> None:
    def left() -> list[tuple[str, str]]:
        return [(stage, name) for stage in process.ports for name in GAUGES if process.metric(stage, name) != 0]

    await until(lambda: not left(), why=left)


async def count_tasks(process: StageProcess, at_most: float) -> float:
    """Returns the number of asyncio tasks in the process, after waiting for at most `at_most`.

    The last callbacks of grpc.aio take a moment.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (tasks := process.metric("thinker", "cheap_tasks")) > at_most and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return tasks


@pytest.mark.parametrize("calls", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
async def test_cancelled_calls_leave_nothing(chain: StageProcess, calls: int) -> None:
    rng = random.Random(4)
    async with AsyncOmniClient(f"127.0.0.1:{chain.ports['thinker']['grpc']}") as client:
        assert (await client.run(raw_text="hello", timeout=PATIENCE_S)).text == WORD * 4
        await settle(chain)
        idle_tasks, own_tasks = chain.metric("thinker", "cheap_tasks"), len(asyncio.all_tasks())
        await cancel_calls(client, WARM_UP, rng)
        await settle(chain)
        before = chain.rss_bytes()
        ended = await cancel_calls(client, calls, rng)
        await settle(chain)
        after = chain.rss_bytes()
        reached = {stage: chain.metric(stage, "cheap_executions") for stage in chain.ports}
        sys.stdout.write(f"{calls - ended} cancelled, reached {reached}, {before >> 20} -> {after >> 20} MiB\n")
        assert ended < calls / 4, "too few calls were cancelled"
        assert min(reached.values()) > calls / 100, "too few calls came as far as the last stage"
        assert after < before * GROWTH
        assert await count_tasks(chain, idle_tasks) <= idle_tasks
        await until(lambda: len(asyncio.all_tasks()) <= own_tasks + 1)
        assert (await client.run(raw_text="hello", timeout=PATIENCE_S)).text == WORD * 4
    assert "Traceback" not in chain.read_log()
    assert "never retrieved" not in chain.read_log()
