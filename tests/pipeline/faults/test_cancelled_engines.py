"""Cancelling a request removes it from the tables of every stage's engine.

Real stage servers and engines run in this process, because a test cannot read tables in another process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from omni_proto.client import AsyncOmniClient, StageFinished, TokenDelta
from omni_proto.stage_config import StageConfig
from omni_stage.service.server.stage_server import StageServer
from support.engines.omni_stages import OmniStages, StartedEngine, run_omni_stages
from support.processes.polling import PATIENCE_S, until
from support.processes.stage_processes import chain_configs, pick_chain_ports

pytestmark = [pytest.mark.pipeline, pytest.mark.engine]

ROUNDS = 5
# A diffusion request is a single engine step, which cannot be interrupted. So it gets only two diffusion steps.
LAST: dict[str, Any] = {"qwen2_5_omni": {"token2wav": {"num_inference_steps": 2}}, "qwen3_omni": {}}
LONG = {
    "thinker": {"temperature": 0.0, "max_tokens": 60, "min_tokens": 60},
    "talker": {"temperature": 0.0, "max_tokens": 50, "min_tokens": 50},
}
SHORT = {"thinker": {"max_tokens": 4}, "talker": {"max_tokens": 8}}


@asynccontextmanager
async def serving(stages: OmniStages, family: str) -> AsyncIterator[AsyncOmniClient]:
    """Starts a server for each engine. Yields a client of the entry stage."""
    configs: dict[str, StageConfig] = chain_configs(pick_chain_ports(family), family=family)
    async with AsyncExitStack() as stack:
        for name, config in configs.items():
            server = StageServer(config, CollectorRegistry())
            stack.push_async_callback(server.close)
            await server.start(lambda _, name=name: StartedEngine(stages.engines[name]))
        target = f"127.0.0.1:{configs['thinker'].listen.grpc_port}"
        yield await stack.enter_async_context(AsyncOmniClient(target))


def held(stages: OmniStages) -> dict[str, list[str]]:
    """Returns, for each stage that still holds requests, the names of the tables that hold them."""
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


async def cancel_after(client: AsyncOmniClient, family: str, stage: str, events: int) -> None:
    """Cancels a request once `stage` has sent `events` events (token deltas or its end)."""
    sampling = {**LONG, **LAST[family]}
    arguments = {"sampling": sampling, "include_token_ids": True, "include_codec_tokens": True, "timeout": PATIENCE_S}
    async with aclosing(client.generate(raw_text="hello there", **arguments)) as answers:
        async for event in answers:
            if getattr(event, "stage", "") == stage and isinstance(event, TokenDelta | StageFinished):
                events -= 1
            if events <= 0:
                return


@pytest.mark.full  # test_calls_that_are_left_end_in_every_engine of tests/engine/streams has fewer calls
@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
async def test_cancelled_requests_leave_every_engine(make_tiny_checkpoint: Callable[..., Path], family: str) -> None:
    rng = random.Random(3)
    checkpoint, short = make_tiny_checkpoint(0, "small", family), {**SHORT, **LAST[family]}
    async with run_omni_stages(checkpoint, family=family) as stages, serving(stages, family) as client:
        assert (await client.run(raw_text="hello", sampling=short, timeout=PATIENCE_S)).audio
        for _ in range(ROUNDS):
            # The fourth call is cancelled when the talker ends, which is when the last stage begins.
            calls = [(rng.choice(("thinker", "talker")), rng.randrange(0, 40)) for _ in range(3)]
            await asyncio.gather(*(cancel_after(client, family, *call) for call in [*calls, ("talker", 51)]))
            await until(lambda: not held(stages))
        assert (await client.run(raw_text="hello", sampling=short, timeout=PATIENCE_S)).audio
