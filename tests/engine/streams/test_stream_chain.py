"""Three stage servers with real engines, all in this process, with every edge in Stream mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from prometheus_client import CollectorRegistry

from omni_proto.client import Accepted, AsyncOmniClient, AudioChunk, StageFinished, TokenDelta
from omni_proto.stage_config import EdgeMode, InputEdge, Listen, Modality, StageConfig
from omni_stage.engine.protocol import StageEngine
from omni_stage.service.server.stage_server import StageServer
from support.engines.omni_stages import OmniStages, StartedEngine, run_omni_stages, stage_config
from support.engines.streams import until_empty
from support.processes.polling import PATIENCE_S, until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SAMPLING = {
    "thinker": {"temperature": 0.8, "max_tokens": 120, "ignore_eos": True},
    "talker": {"temperature": 1.1, "max_tokens": 150, "ignore_eos": True},
}


Chains = tuple[OmniStages, str, str, list[StageServer]]


class Chain:
    """Three stage servers (thinker -> talker -> token2wav). Two chains can share one set of engines."""

    def __init__(self, mode: EdgeMode) -> None:
        self._mode = mode
        self.servers: dict[str, StageServer] = {}

    async def start(self, stages: OmniStages, checkpoint: Path, stack: AsyncExitStack) -> str:
        """Starts the servers from the last stage to the first. Returns the entry stage's address."""
        target = ""
        for name in ("token2wav", "talker", "thinker"):
            server = StageServer(self._config(name, checkpoint, target), CollectorRegistry())
            engine: StageEngine = stages.engines[name]
            stack.push_async_callback(server.close)
            ports = await server.start(lambda _, engine=engine: StartedEngine(engine))
            target = f"127.0.0.1:{ports.grpc}"
            self.servers[name] = server
        return target

    def _config(self, name: str, checkpoint: Path, target: str) -> StageConfig:
        config = stage_config(name, checkpoint)
        listen = Listen(host="127.0.0.1", grpc_port=0, health_port=0, metrics_port=0)
        changes: dict[str, Any] = {"listen": listen}
        if config.input is not None:
            changes["input"] = InputEdge(source=config.input.source, mode=self._mode)
        if config.downstream:
            (edge,) = config.downstream
            below = ["talker", "token2wav"] if edge.stage == "talker" else ["token2wav"]
            changed = {"target": target, "mode": self._mode, "stages": below, "outputs": [Modality.AUDIO]}
            changes["downstream"] = [edge.model_copy(update=changed)]
        return config.model_copy(update=changes)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chains(make_tiny_checkpoint: Callable[..., Path]) -> AsyncIterator[Chains]:
    """The engines, the addresses of a Full chain and of a Stream chain, and all servers."""
    checkpoint = make_tiny_checkpoint(0, "gqa")
    async with run_omni_stages(checkpoint) as stages, AsyncExitStack() as stack:
        full, streamed = Chain(EdgeMode.FULL), Chain(EdgeMode.STREAM)
        addresses = [await chain.start(stages, checkpoint, stack) for chain in (full, streamed)]
        yield stages, *addresses, [*full.servers.values(), *streamed.servers.values()]


async def run(client: AsyncOmniClient, text: str, seed: int) -> Any:
    return await client.run(
        raw_text=text,
        seed=seed,
        sampling=SAMPLING,
        include_token_ids=True,
        include_codec_tokens=True,
        encoding="pcm_f32le",
        timeout=3 * PATIENCE_S,
    )


# tests/pipeline/answers/test_stream_grpc.py tests the same with three processes. test_stream_audio.py tests how much
# streamed audio differs from audio that is computed in one piece.
@pytest.mark.full
async def test_equal_and_earlier(chains: Chains) -> None:
    stages, full_address, address, servers = chains
    order: list[str] = []
    timings: dict[str, Any] = {}
    async with AsyncOmniClient(full_address) as full, AsyncOmniClient(address) as streamed:
        expected = [await run(full, text, seed) for seed, text in enumerate(["Hello", "One, two", "?"])]
        results = await asyncio.gather(*(run(streamed, text, s) for s, text in enumerate(["Hello", "One, two", "?"])))
        async for event in streamed.generate(
            raw_text="Hello",
            seed=0,
            sampling=SAMPLING,
            include_token_ids=True,
            include_codec_tokens=True,
            timeout=3 * PATIENCE_S,
        ):
            if isinstance(event, TokenDelta):
                order += [event.stage] * len(event.ids)
            elif isinstance(event, Accepted | AudioChunk):
                order.append(f"{event.stage} {type(event).__name__}")
            elif isinstance(event, StageFinished):
                timings[event.stage] = event.timings
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.text == theirs.text
        assert ours.token_ids == theirs.token_ids
        waveform, whole = (torch.from_numpy(np.frombuffer(r.audio, "<f4").copy()) for r in (ours, theirs))
        assert waveform.shape == whole.shape
        assert float((waveform - whole).pow(2).mean().sqrt()) < 0.05 * float(whole.pow(2).mean().sqrt())
    assert order[:3] == ["thinker Accepted", "talker Accepted", "token2wav Accepted"]
    assert order.index("talker") < len(order) - 1 - order[::-1].index("thinker"), "a code before the last word"
    assert order.index("token2wav AudioChunk") < len(order) - 1 - order[::-1].index("talker"), "sound before the last"
    assert 0 < timings["talker"].first_output_ns < timings["talker"].input_complete_ns
    assert 0 < timings["token2wav"].first_audio_ns < timings["token2wav"].input_complete_ns
    await wait_until_left(stages, servers)


async def wait_until_left(stages: OmniStages, servers: Sequence[StageServer]) -> None:
    """Waits until no server and no table of an engine holds a request."""
    for server in servers:
        await until(lambda admission=server.admission: admission.requests == 0)
    for name, engine in stages.engines.items():
        await until(lambda engine=engine: engine.unfinished_requests == 0)
        if name != "token2wav":
            assert await until_empty(engine) == {}


async def leave(address: str, stage: str, tokens: int) -> None:
    """Asks for an answer, and leaves the call when the stage has sent so many pieces of tokens, or has ended."""
    wanted = {"sampling": SAMPLING, "include_token_ids": True, "include_codec_tokens": True, "timeout": 3 * PATIENCE_S}
    async with AsyncOmniClient(address) as client, aclosing(client.generate(raw_text="Hello", **wanted)) as events:
        async for event in events:
            if isinstance(event, TokenDelta | StageFinished) and event.stage == stage:
                tokens -= 1
                if tokens <= 0 or isinstance(event, StageFinished):
                    return


async def test_calls_that_are_left_end_in_every_engine(chains: Chains) -> None:
    """Calls over edges of both modes, left in the thinker, in the talker, and when the last stage begins."""
    stages, full_address, address, servers = chains
    places = [("thinker", 1), ("thinker", 30), ("talker", 1), ("talker", 40), ("talker", 10_000)]
    await asyncio.gather(*(leave(to, *place) for to in (full_address, address) for place in places))
    await wait_until_left(stages, servers)
