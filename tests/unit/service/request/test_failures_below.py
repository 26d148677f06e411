"""Failures of a downstream stage are relayed unchanged, turned into an event (allow_partial), or retried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import torch

from omni_proto.stage.v1 import stage_service_pb2_grpc
from omni_proto.stage_config import EdgeMode
from omni_stage import errors
from omni_stage.models.component import FinishReason, StageStep
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
"""Options of a client that holds few unread messages."""


async def test_failure_below_is_relayed_unchanged(kit: Any) -> None:
    error = errors.ModelExecutionError("no sound", field="codes", limit=3)
    first, _, _ = await kit.chain(token2wav=lab.failing(error, after=0))
    answer = await lab.ask(first)
    assert (answer.code, answer.message) == (grpc.StatusCode.INTERNAL, "no sound")
    assert answer.info.reason == "MODEL_ERROR"
    assert dict(answer.info.metadata) | {"request_id": ""} == {
        "stage": "token2wav",
        "request_id": "",
        "field": "codes",
        "limit": "3",
    }
    assert answer.text == "Hello"
    assert first.metric("omni_stage_downstream_errors_total", peer="talker", code="INTERNAL") == 1


async def test_allow_partial_turns_a_failure_below_into_an_event(kit: Any) -> None:
    first, _, _ = await kit.chain(token2wav=lab.failing(errors.ModelExecutionError("no sound"), after=0))
    answer = await lab.ask(first, [lab.start(allow_partial=True), lab.END])
    assert answer.code is grpc.StatusCode.OK
    assert answer.text == "Hello"
    failed = answer.of("failed", "token2wav")
    assert [f.status.message for f in failed] == ["no sound"]
    outcomes = {o.stage: o.code for o in answer.of("summary")[0].stages}
    assert outcomes == {"thinker": 0, "talker": 0, "token2wav": 13}


async def test_allow_partial_of_the_own_engine(kit: Any) -> None:
    first, middle, _ = await kit.chain(thinker=lab.failing(errors.ModelExecutionError("lost")))
    answer = await lab.ask(first, [lab.start(allow_partial=True), lab.END])
    assert answer.code is grpc.StatusCode.OK
    assert answer.text == "so far"
    assert [f.status.message for f in answer.of("failed", "thinker")] == ["lost"]
    assert middle.engine.requests == []


async def test_allow_partial_while_a_message_is_being_written_to_a_slow_caller(kit: Any) -> None:
    """gRPC allows one write at a time, and continues a write whose task was cancelled."""
    fail, sent = asyncio.Event(), 0

    async def thinker(request: Any) -> AsyncIterator[StageStep]:
        yield StageStep(token_ids=[7], prompt_token_ids=[1, 2, 3], tensors={"x": lab.rows(3), "ids": torch.arange(3)})
        await fail.wait()
        raise errors.ModelExecutionError("lost")

    async def speak(request: Any) -> AsyncIterator[StageStep]:
        nonlocal sent
        while True:
            yield StageStep(audio=torch.zeros(24_000))
            sent += 1

    last = await kit.serve(
        speak,
        stage="talker",
        outputs=["Audio"],
        input={"source": "thinker", "mode": "Stream"},
        component=lab.ScriptedComponent(input_schema=lab.EDGE_A),
    )
    edge = kit.edge("talker", last.target, ["talker"]).model_copy(update={"mode": EdgeMode.STREAM})
    first = await kit.serve(thinker, downstream=[edge], component=lab.ScriptedComponent(output_schema=lab.EDGE_A))
    async with grpc.aio.insecure_channel(first.target, options=SMALL_WINDOW) as channel:
        messages = iter([lab.start(allow_partial=True), lab.END])
        call = stage_service_pb2_grpc.StageServiceStub(channel).Generate(messages, timeout=PATIENCE_S)
        responses = aiter(call)
        await anext(responses)
        # The caller pauses until the talker can send no more.
        before = -1
        while sent == 0 or sent > before:
            before = sent
            await asyncio.sleep(0.3)
        fail.set()
        kinds = [(response.stage, response.WhichOneof("message")) async for response in responses]
    assert await call.code() is grpc.StatusCode.OK
    assert kinds[-2:] == [("thinker", "failed"), ("thinker", "summary")]


async def test_unreachable_stage_is_named(kit: Any) -> None:
    edge = kit.edge("talker", "127.0.0.1:1", ["talker"])
    stage = await kit.serve(downstream=[edge], component=lab.ScriptedComponent(output_schema=lab.EDGE_A))
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DOWNSTREAM_UNAVAILABLE")
    assert answer.info.metadata["stage"] == "talker"
    assert stage.metric("omni_stage_downstream_errors_total", peer="talker", code="UNAVAILABLE") == 3


async def test_other_schema_below_is_refused_before_it_works(kit: Any) -> None:
    last = await kit.serve(
        lab.make_audio,
        stage="talker",
        outputs=["Audio"],
        input={"source": "thinker"},
        component=lab.ScriptedComponent(input_schema=lab.EDGE_B),
    )
    stage = await kit.serve(
        downstream=[kit.edge("talker", last.target, ["talker"])],
        component=lab.ScriptedComponent(output_schema=lab.EDGE_A),
    )
    answer = await lab.ask(stage)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "EDGE_SCHEMA_MISMATCH")
    assert answer.info.metadata["stage"] == "talker"


async def test_retry_before_accepted_succeeds(kit: Any) -> None:
    first, middle, _ = await kit.chain()
    middle.server.admission.max_requests = 0

    async def make_room() -> None:
        # Only this metric shows from outside that the talker has refused a call.
        refusal = {"code": "RESOURCE_EXHAUSTED", "reason": "TOO_MANY_REQUESTS"}
        await middle.wait_for_metric("omni_stage_requests_total", 1, **refusal)
        middle.server.admission.max_requests = 4

    answer, _ = await asyncio.gather(lab.ask(first), make_room())
    assert answer.code is grpc.StatusCode.OK
    assert len(middle.engine.requests) == 1


async def test_component_that_breaks_its_schema(kit: Any) -> None:
    async def wrong(request: Any) -> Any:
        tensors = {"x": torch.zeros(1, 3), "ids": torch.zeros(1, dtype=torch.int64)}
        yield StageStep(tensors=tensors, prompt_token_ids=[1], finish_reason=FinishReason.STOP)

    first, _, _ = await kit.chain(thinker=wrong)
    answer = await lab.ask(first)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.INTERNAL, "MODEL_ERROR")
    assert answer.info.metadata["stage"] == "thinker"
