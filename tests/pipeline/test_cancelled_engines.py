"""Cancelling a request frees it in the engine of every stage, as the engines' own tables say.

Real stage servers and real engines, all in this process: a table in another process cannot be looked at.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from omni_proto.client import AsyncOmniClient, StageFinished, TokenDelta
from omni_proto.stage_config import StageConfig
from omni_stage.service.server.stage_server import StageServer
from support.omni_stages import OmniStages, StartedEngine, run_omni_stages
from support.stage_processes import chain_configs, pick_chain_ports

pytestmark = [pytest.mark.pipeline, pytest.mark.engine]

CALLS = 36
USUALLY_S, ALWAYS_S = 1.0, 5.0
LONG = {
    "thinker": {"temperature": 0.0, "max_tokens": 60, "min_tokens": 60},
    "talker": {"temperature": 0.0, "max_tokens": 50, "min_tokens": 50},
    # A diffusion request is one step of its engine, which ends before anything can leave it.
    "token2wav": {"num_inference_steps": 2},
}
SHORT = {"thinker": {"max_tokens": 4}, "talker": {"max_tokens": 8}, "token2wav": {"num_inference_steps": 2}}


@asynccontextmanager
async def serving(stages: OmniStages) -> AsyncIterator[AsyncOmniClient]:
    """A server for each engine, and a client of the first."""
    configs: dict[str, StageConfig] = chain_configs(pick_chain_ports())
    async with AsyncExitStack() as stack:
        for name, config in configs.items():
            server = StageServer(config, CollectorRegistry())
            stack.push_async_callback(server.close)
            await server.start(lambda _, name=name: StartedEngine(stages.engines[name]))
        target = f"127.0.0.1:{configs['thinker'].listen.grpc_port}"
        yield await stack.enter_async_context(AsyncOmniClient(target))


def held(stages: OmniStages) -> dict[str, list[str]]:
    """Requests by the tables of vLLM's schedulers and output processors, where there are any."""
    found = {}
    for name, engine in stages.engines.items():
        llm = engine._core.llm  # type: ignore[attr-defined]
        tables = {
            "scheduler": llm.engine_core.engine_core.scheduler.requests,
            "output processor": llm.output_processor.request_states,
            "stage engine": engine.unfinished_requests,
        }
        found |= {name: [table for table, content in tables.items() if content]} if any(tables.values()) else {}
    return found


async def cancel_after(client: AsyncOmniClient, stage: str, events: int) -> None:
    """Cancel once that stage has sent so many events of its work (or has ended)."""
    arguments = {"sampling": LONG, "include_token_ids": True, "include_codec_tokens": True, "timeout": 60}
    async with aclosing(client.generate(raw_text="hello there", **arguments)) as answers:
        async for event in answers:
            if getattr(event, "stage", "") == stage and isinstance(event, TokenDelta | StageFinished):
                events -= 1
            if events <= 0:
                return


async def test_cancelled_requests_leave_every_engine(tiny_checkpoint: Path) -> None:
    rng, seconds = random.Random(3), []
    async with run_omni_stages(tiny_checkpoint) as stages, serving(stages) as client:
        assert (await client.run(raw_text="hello", sampling=SHORT, timeout=60)).audio
        for _ in range(CALLS // 4):
            # The talker's end is when token2wav begins.
            calls = [(rng.choice(("thinker", "talker")), rng.randrange(0, 40)) for _ in range(3)]
            await asyncio.gather(*(cancel_after(client, *call) for call in [*calls, ("talker", 51)]))
            began = time.monotonic()
            while left := held(stages):
                assert time.monotonic() - began < ALWAYS_S, f"still there: {left}"
                await asyncio.sleep(0.005)
            seconds.append(time.monotonic() - began)
        assert statistics.median(seconds) < USUALLY_S
        assert (await client.run(raw_text="hello", sampling=SHORT, timeout=60)).audio
