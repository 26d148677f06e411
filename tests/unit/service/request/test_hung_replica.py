"""One of two replicas of a diffusion stage hangs in a step: who is not in that step does not wait for it.

Real stage servers, scripted engines. The one in the hung step and those whom round_robin sends there until its watchdog
speaks end with STEP_TIMEOUT; speech of the other replica and text take as long as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage_config import SamplingDefaults
from omni_stage.models.component import StageRequest, StageStep
from support.scripted_stages import EDGE_B, make_sound

STEP_TIMEOUT_S = 4.0
FLOOR_S = 1.0
"""Twice less than this is not told from a busy machine's noise; who waits for the hung step waits for 4 s."""
PAUSE_S = 0.03


class Diffusion:
    """Makes a sound in 20 ms, until it hangs."""

    def __init__(self) -> None:
        self.hangs = False

    async def play(self, request: StageRequest) -> AsyncIterator[StageStep]:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0.02)
        async for step in make_sound(request):
            yield step


def p95(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.95)]


async def test_who_is_not_in_the_hung_step_does_not_wait(kit: Any, lab: SimpleNamespace) -> None:
    engine = Diffusion()
    hung = await kit.serve(
        engine.play,
        stage="token2wav",
        outputs=["Audio"],
        input={"source": "talker"},
        timeouts={"step": STEP_TIMEOUT_S},
        component=lab.ScriptedComponent(
            kind=EngineKind.DIFFUSION, input_schema=EDGE_B, default_sampling=SamplingDefaults(), voices=("Chelsie",)
        ),
    )
    watching = asyncio.create_task(hung.server.serve(asyncio.Event(), asyncio.Event()))

    def both(stage: str, target: str) -> str:
        return f"ipv4:{target},{hung.target}" if stage == "token2wav" else target

    entry, _, good = await kit.chain(token2wav=Diffusion().play, via=both, outputs=["Text", "Audio"])
    health = health_pb2_grpc.HealthStub(hung.channel)

    async def one(*modalities: int) -> tuple[str, float]:
        began = time.monotonic()
        start = lab.start("hello", modalities=modalities)
        answer = await lab.ask(entry, [start, lab.END], timeout_s=60)
        how = "ok" if answer.code is grpc.StatusCode.OK else str(answer.info.reason)
        return how, time.monotonic() - began

    async def load(count: int, *modalities: int) -> list[tuple[str, float]]:
        """As many requests, one each PAUSE_S, whether or not those before have ended."""
        running = []
        for _ in range(count):
            running.append(asyncio.create_task(one(*modalities)))
            await asyncio.sleep(PAUSE_S)
        return list(await asyncio.gather(*running))

    speech, text = (sampling_pb2.MODALITY_TEXT, sampling_pb2.MODALITY_AUDIO), (sampling_pb2.MODALITY_TEXT,)
    # Both replicas are connected by then.
    await load(12, *speech)
    alone = {"speech": await load(40, *speech), "text": await load(40, *text)}
    assert {how for times in alone.values() for how, _ in times} == {"ok"}
    assert hung.engine.requests, "both replicas had a share"
    assert good.engine.requests

    engine.hangs = True
    hung.engine.started.clear()
    lost = [asyncio.create_task(one(*speech)) for _ in range(2)]
    await asyncio.wait_for(hung.engine.started.wait(), 20)
    some_speech, some_text = await asyncio.gather(load(40, *speech), load(40, *text))
    during = {"text": some_text, "speech": some_speech}
    assert {how for how, _ in during["text"]} == {"ok"}
    assert {how for how, _ in during["speech"]} == {"ok", "STEP_TIMEOUT"}
    for kind, times in during.items():
        before, now = (p95([took for how, took in some if how == "ok"]) for some in (alone[kind], times))
        assert now <= 2 * max(before, FLOOR_S), kind
    assert "STEP_TIMEOUT" in {how for how, _ in [await task for task in lost]}
    # The hung one said so, and nobody is sent there any more.
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert {how for how, _ in await load(12, *speech)} == {"ok"}
    watching.cancel()
