"""Requests with streamed input between the component and the engine core. No engine runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.streamed import StreamedRuns
from omni_stage.engine.work import WorkLedger
from omni_stage.models.component import (
    EdgeRows,
    EdgeStream,
    EngineInput,
    EngineStep,
    FinishReason,
    InputPart,
    StageRequest,
    StageStep,
)
from omni_stage.models.manifest import describe
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom, Sessions
from support.processes.polling import until

ONE_BLOCK = SessionRoom(sessions=8, blocks=1, block_tokens=8)


class Feed:
    """Makes one part of the first rows that arrive, and records the time."""

    def __init__(self) -> None:
        self.ready_ns = 0

    def add(self, rows: EdgeRows) -> None:
        self.ready_ns = time.monotonic_ns()

    def next_part(self) -> InputPart | None:
        return InputPart(EngineInput(prompt={"prompt_token_ids": [1, 2]}), last=True) if self.ready_ns else None


class Component:
    """A component whose requests have one part each."""

    def __init__(self, kind: EngineKind) -> None:
        self.facts = describe(ComponentFacts(id="test/streamed", kind=kind, streams_input=True))
        self.feeds: dict[str, Feed] = {}

    def open_feed(self, request: StageRequest) -> Feed:
        return self.feeds.setdefault(request.request_id, Feed())

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Any:
        return SimpleNamespace(emit=StageStep.of)


class Core:
    """An engine core that schedules at once and answers with one step."""

    def __init__(self) -> None:
        self.scheduled: dict[str, int] = {}

    async def stream_parts(
        self, request_id: str, parts: AsyncGenerator[Any, None], *, priority: int = 0
    ) -> AsyncGenerator[EngineStep, None]:
        await anext(parts)
        yield self._answer(request_id)

    async def stream(self, request_id: str, *_: Any, on_submit: Any, **__: Any) -> AsyncGenerator[EngineStep, None]:
        on_submit()
        yield self._answer(request_id)

    def _answer(self, request_id: str) -> EngineStep:
        now = self.scheduled[request_id] = time.monotonic_ns()
        return EngineStep(token_ids=[7], finish_reason=FinishReason.STOP, scheduled_ns=now)


def runs(kind: EngineKind) -> StreamedRuns:
    lowering: Any = SimpleNamespace(
        component=Component(kind),
        traits=SimpleNamespace(max_model_len=8),
        params=lambda *_: SamplingParams(max_tokens=6),
        sampling_params=lambda *_: SamplingParams(max_tokens=6),
        lower=lambda *_: ({}, SamplingParams()),
        lower_part=lambda *_: None,
    )
    core: Any = Core()
    return StreamedRuns(core, lowering, WorkLedger(), Sessions(ONE_BLOCK))


def ask(name: str = "a") -> tuple[StageRequest, EdgeStream]:
    stream = EdgeStream()
    return StageRequest(name, stream, SamplingDefaults()), stream


async def collect(steps: AsyncIterator[StageStep]) -> list[StageStep]:
    return [step async for step in steps]


@pytest.mark.parametrize("kind", [EngineKind.AUTOREGRESSIVE, EngineKind.DIFFUSION])
async def test_a_request_is_submitted_when_its_first_rows_have_arrived(kind: EngineKind) -> None:
    """Until then, the request waits for the upstream stage. That time must not count as time in this engine's queue."""
    streamed = runs(kind)
    request, stream = ask()
    run = streamed.run_windows if kind.is_one_shot else streamed.run_session
    task = asyncio.create_task(collect(run(request, stream)))
    await asyncio.sleep(0)
    stream.put({}, ["x"])
    (step,) = await task
    assert step.scheduled_ns
    assert streamed.lowering.component.feeds["a"].ready_ns <= step.submitted_ns <= step.scheduled_ns


async def test_a_session_that_waits_for_kv_cache_is_submitted_and_waits_in_the_queue() -> None:
    streamed = runs(EngineKind.AUTOREGRESSIVE)
    async with streamed.sessions.enter(8):
        request, stream = ask()
        stream.put({}, ["x"])
        task = asyncio.create_task(collect(streamed.run_session(request, stream)))
        await until(lambda: streamed.waiting_requests == 1)
        left = time.monotonic_ns()
    (step,) = await task
    assert step.submitted_ns <= left <= step.scheduled_ns
    assert streamed.waiting_requests == 0
