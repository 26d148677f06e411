"""A caller that is silent for too long loses its place. A stage without rows yet is not silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from omni_proto.stage.v1 import stage_service_pb2 as pb, tensors_pb2
from omni_proto.tensors import schema_hash, tensor_prompt
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.service.edges import downstream_call
from omni_stage.service.request import reading
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.streamed_pairs import step


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns the limit that replaces 30 s."""
    monkeypatch.setattr(reading, "QUIET_S", 1.0)
    monkeypatch.setattr(downstream_call, "ALIVE_S", 0.05)
    return 1.0


async def think_never(request: StageRequest) -> AsyncIterator[StageStep]:
    await asyncio.Event().wait()
    yield StageStep()


def talker_start() -> pb.GenerateRequest:
    prompt = tensor_prompt(lab.EDGE_A, "thinker", [("x", 16), ("ids", 16)])
    return pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(lab.EDGE_A)))


async def ask_and_stay(stage: Any, messages: list[pb.GenerateRequest]) -> lab.Answer:
    """Sends the messages, and nothing after them, not even the end of the stream."""
    call = stage.stub.Generate(timeout=PATIENCE_S)
    for message in messages:
        await call.write(message)
    return await lab.collect(call)


@pytest.mark.parametrize("rows", [0, 1])
async def test_a_neighbour_without_rows_loses_its_slot(
    start_pair: Callable[..., Any], short_limits: float, rows: int
) -> None:
    """64 calls that send a correct Start, and then nothing or one message: all end, with the reason and the limit."""
    pair = await start_pair(think_never)
    messages = [talker_start(), *[pb.GenerateRequest(tensors=tensors_pb2.TensorChunks())] * rows]
    answers = await asyncio.gather(*(ask_and_stay(pair.talker, messages) for _ in range(64)))
    assert {answer.code.name for answer in answers} == {"DEADLINE_EXCEEDED"}
    assert all("'thinker' sent neither rows nor a sign of life for 1 s" in answer.message for answer in answers)
    assert {answer.info.metadata["stage"] for answer in answers} == {"talker"}
    await until(lambda: not pair.talker.server.admission.requests)


async def test_a_client_without_end_loses_its_slot(kit: Any, short_limits: float) -> None:
    stage = await kit.serve(lab.say_hello)
    answer = await ask_and_stay(stage, [lab.start()])
    assert (answer.code.name, answer.info.metadata["limit"]) == ("DEADLINE_EXCEEDED", "1 s")
    await until(lambda: not stage.server.admission.requests)


async def test_a_stage_that_waits_for_its_engine_is_not_silent(
    start_pair: Callable[..., Any], short_limits: float
) -> None:
    """Neither before its first rows, as behind a long prefill, nor between rows, as after a preemption.

    A machine that stalls for as long as the limit may end a few requests.
    """

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        await asyncio.sleep(2.5 * short_limits)
        yield step(0, 3, prompt_token_ids=[1])
        await asyncio.sleep(2.5 * short_limits)
        for row in range(3, 20):
            yield step(row, row + 1)
            await asyncio.sleep(0.02)
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think)
    for _ in range(5):
        pair.reads.clear()
        answer = await lab.ask(pair.thinker)
        if answer.code.name == "OK":
            break
    assert answer.code.name == "OK", answer.message
    assert len(pair.rows) == 20
