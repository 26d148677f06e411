"""If one of two replicas of a diffusion stage hangs in a step, only the requests at that replica wait.

The stage servers are real, their engines scripted. Requests that round_robin sends to the hung replica wait until its
watchdog ends them with STEP_TIMEOUT. Text requests, and speech from the other replica, finish while the step hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage_config import SamplingDefaults
from omni_stage.models.component import StageRequest, StageStep
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.scripted_stages import EDGE_B, make_audio

LONG_S, SHORT_S = 600.0, 1.0
"""Time limits of a step in seconds: LONG_S never passes during a test, SHORT_S passes soon."""
SPEECH, TEXT = (sampling_pb2.MODALITY_TEXT, sampling_pb2.MODALITY_AUDIO), (sampling_pb2.MODALITY_TEXT,)


class Diffusion:
    """An engine's script that returns audio immediately, or never once `hangs` is set."""

    def __init__(self) -> None:
        self.hangs = False

    async def play(self, request: StageRequest) -> AsyncIterator[StageStep]:
        if self.hangs:
            await asyncio.Event().wait()
        async for step in make_audio(request):
            yield step


class Replicas:
    """A chain whose token2wav has two replicas, one of which can hang."""

    def __init__(self, kit: Any) -> None:
        self._kit, self._engine = kit, Diffusion()

    async def start(self, step_timeout_s: float) -> None:
        """Starts all four servers and sends requests until each replica has had one."""
        self.hung = await self._kit.serve(
            self._engine.play,
            stage="token2wav",
            outputs=["Audio"],
            input={"source": "talker"},
            timeouts={"step": step_timeout_s},
            component=lab.ScriptedComponent(
                kind=EngineKind.DIFFUSION, input_schema=EDGE_B, default_sampling=SamplingDefaults(), voices=("Chelsie",)
            ),
        )
        both = f"ipv4:{{}},{self.hung.target}"
        self._entry, _, self.good = await self._kit.chain(
            token2wav=Diffusion().play,
            via=lambda stage, target: both.format(target) if stage == "token2wav" else target,
            outputs=["Text", "Audio"],
        )
        async with asyncio.timeout(PATIENCE_S):
            while not (self.hung.engine.requests and self.good.engine.requests):
                assert await self.ask(*SPEECH) == "ok"

    def hang(self) -> None:
        """Makes every later step of one replica hang."""
        self._engine.hangs = True

    async def ask(self, *modalities: int) -> str:
        """Sends one request. Returns "ok" or the error's reason."""
        start = lab.start("hello", modalities=modalities)
        answer = await lab.ask(self._entry, [start, lab.END], timeout_s=PATIENCE_S)
        return "ok" if answer.code is grpc.StatusCode.OK else str(answer.info.reason)

    def begin(self, count: int, *modalities: int) -> list[asyncio.Task[str]]:
        """Starts `count` concurrent requests."""
        return [asyncio.create_task(self.ask(*modalities)) for _ in range(count)]


@pytest.fixture
def replicas(kit: Any) -> Replicas:
    return Replicas(kit)


async def test_requests_outside_the_hung_step_do_not_wait(replicas: Replicas) -> None:
    """Text requests, and speech requests at the other replica, finish while one replica hangs."""
    await replicas.start(LONG_S)
    replicas.hang()
    before = len(replicas.hung.engine.requests)
    speech = replicas.begin(20, *SPEECH)
    await until(lambda: len(replicas.hung.engine.requests) > before)
    assert {await text for text in replicas.begin(20, *TEXT)} == {"ok"}
    # All speech requests end, except the one or more that the hung replica has.
    await until(lambda: sum(task.done() for task in speech) == 20 - (len(replicas.hung.engine.requests) - before) > 0)
    assert {task.result() for task in speech if task.done()} == {"ok"}
    assert not all(task.done() for task in speech)
    for task in speech:
        task.cancel()
    await asyncio.gather(*speech, return_exceptions=True)


async def test_a_hung_replica_says_so_and_is_asked_no_more(replicas: Replicas) -> None:
    """A hung replica reports NOT_SERVING, and no further requests are sent to it."""
    await replicas.start(SHORT_S)
    watching = asyncio.create_task(replicas.hung.server.serve(asyncio.Event(), asyncio.Event()))
    replicas.hang()
    assert {await task for task in replicas.begin(20, *SPEECH)} == {"ok", "STEP_TIMEOUT"}
    health, question = health_pb2_grpc.HealthStub(replicas.hung.channel), health_pb2.HealthCheckRequest()
    async with asyncio.timeout(PATIENCE_S):
        while (await health.Check(question)).status != health_pb2.HealthCheckResponse.NOT_SERVING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert {await task for task in replicas.begin(12, *SPEECH)} == {"ok"}
    watching.cancel()
