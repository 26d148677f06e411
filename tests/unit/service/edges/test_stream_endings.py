"""Every way a Stream edge ends: a stage fails, refuses, needs no more rows, violates the protocol or stops sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import torch

from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.tensors import crc32c, encode_tensor_chunk, schema_hash, tensor_prompt
from omni_stage import errors
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.streamed_pairs import Gates, Pair, step


async def test_a_talker_that_needs_no_more_ends_and_the_thinker_continues(start_pair: Callable[..., Any]) -> None:
    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await pair.talker.engine.ended.wait()
        for row in range(3, 9):
            yield step(row, row + 1)
            await asyncio.sleep(0)
        yield StageStep(finish_reason=FinishReason.LENGTH)

    pair = await start_pair(think, take=3)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert answer.text == "0 3 4 5 6 7 8 "
    assert [o.code for o in answer.of("summary")[0].stages] == [0, 0]
    assert pair.talker.server.admission.requests == pair.talker.server.admission.bytes == 0


@pytest.mark.parametrize("partial", [False, True])
async def test_an_upstream_that_fails_ends_the_talker(start_pair: Callable[..., Any], partial: bool) -> None:
    gates = Gates()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await gates.has(3).wait()
        raise errors.ModelExecutionError("lost")

    gates.has(3)
    pair = await start_pair(think, gates=gates)
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=partial), lab.END])
    assert answer.text == "0 "
    if partial:
        assert answer.code.name == "OK"
        assert [f.status.message for f in answer.of("failed", "thinker")] == ["lost"]
    else:
        assert (answer.code.name, answer.info.metadata["stage"]) == ("INTERNAL", "thinker")
    await asyncio.wait_for(pair.talker.engine.ended.wait(), PATIENCE_S)
    assert len(pair.talker.engine.aborted) == 1
    await until(lambda: not pair.talker.server.admission.requests)


@pytest.mark.parametrize("partial", [False, True])
async def test_a_talker_that_fails_in_the_middle(start_pair: Callable[..., Any], partial: bool) -> None:
    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await pair.talker.engine.ended.wait()
        await asyncio.sleep(0.05 if partial else 30)
        yield step(3, 4)
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think, take=3, fail=errors.ModelExecutionError("no voice"))
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=partial), lab.END])
    if partial:
        assert answer.code.name == "OK"
        assert answer.text == "0 3 "
        assert [f.status.message for f in answer.of("failed", "talker")] == ["no voice"]
    else:
        assert (answer.code.name, answer.info.metadata["stage"]) == ("INTERNAL", "talker")
        assert len(pair.thinker.engine.aborted) == 1


async def test_what_the_talker_refuses_is_known_before_accepted(start_pair: Callable[..., Any]) -> None:
    pair = await start_pair(lab.say_hello)
    params = pb.Start(text="x")
    params.sampling["talker"].min_tokens = 2
    for _ in range(3):
        answer = await lab.ask(pair.thinker, [pb.GenerateRequest(start=params), lab.END])
        assert answer.responses == []
        assert (answer.code.name, answer.info.metadata["field"]) == (
            "INVALID_ARGUMENT",
            "start.sampling[talker].min_tokens",
        )
    began, aborted = pair.thinker.engine.requests, pair.thinker.engine.aborted
    assert len(began) == len(aborted) <= 1, "after a refusal, the engine starts only once the talker has accepted"


async def test_with_allow_partial_a_talker_that_cannot_be_had_is_left_out(start_pair: Callable[..., Any]) -> None:
    pair = await start_pair(lab.say_hello)
    pair.talker.server.admission.max_requests = 0
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=True), lab.END])
    assert answer.code.name == "OK"
    assert answer.text == "Hello"
    assert answer.kinds[:2] == [("thinker", "accepted"), ("talker", "failed")]


def chunk(name: str, offset: int, rows: int, **changes: Any) -> bytes:
    data = (lab.rows(rows, offset) if name == "x" else torch.arange(offset, offset + rows)).contiguous()
    raw = data.view(torch.uint8).numpy().tobytes()
    return encode_tensor_chunk(
        name, changes.get("at", offset), rows, changes.get("crc", crc32c(raw)), changes.get("last", False), raw
    )


BROKEN: dict[str, tuple[Callable[[], list[Any]], str, str]] = {
    "damaged": (lambda: [chunk("x", 2, 1, crc=1)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "a gap": (lambda: [chunk("x", 2, 1, at=5)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "again": (lambda: [chunk("x", 0, 2)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "too many": (lambda: [chunk("x", 2, 60)], "INVALID_ARGUMENT", "INVALID_TENSOR"),
    "end without last": (lambda: [lab.END], "DATA_LOSS", "CORRUPT_TENSOR"),
    "no end": (list, "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
    "Start again": (lambda: [lab.start()], "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_breaks_in_the_middle_ends_the_engines_request(start_pair: Callable[..., Any], case: str) -> None:
    broken, code, reason = BROKEN[case]
    pair = await start_pair(lab.say_hello)
    answer = await lab.collect(call_talker(pair, [chunk("x", 0, 2), *broken()]))
    assert (answer.code.name, answer.info.reason) == (code, reason)
    assert [kind for _, kind in answer.kinds] == ["accepted"]
    await until(lambda: len(pair.talker.engine.aborted) == len(pair.talker.engine.requests))
    assert pair.talker.server.admission.requests == pair.talker.server.admission.bytes == 0


@pytest.mark.parametrize("way", ["deadline", "cancel"])
async def test_an_upstream_that_falls_silent(start_pair: Callable[..., Any], way: str) -> None:
    pair = await start_pair(lab.say_hello)
    silent = asyncio.Event()

    async def messages() -> AsyncIterator[Any]:
        yield talker_start()
        yield chunk("x", 0, 2)
        await silent.wait()

    call = call_talker(pair, messages(), timeout_s=5 if way == "deadline" else PATIENCE_S)
    if way == "cancel":
        await until(lambda: bool(pair.reads))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lab.collect(call)
    else:
        answer = await lab.collect(call)
        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(pair.talker.engine.aborted) == 1)
    await until(lambda: not pair.talker.server.admission.requests)


def talker_start() -> pb.GenerateRequest:
    prompt = tensor_prompt(lab.EDGE_A, "thinker", [("x", 16), ("ids", 16)])
    return pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(lab.EDGE_A)))


def call_talker(pair: Pair, messages: Any, timeout_s: float = PATIENCE_S) -> Any:
    """Calls the talker directly. A list of messages is sent after Start; an iterator must itself begin with Start."""
    channel = grpc.aio.insecure_channel(pair.talker.target)
    generate = channel.stream_stream(
        "/omni_proto.stage.v1.StageService/Generate",
        request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
        response_deserializer=pb.GenerateResponse.FromString,
    )
    if isinstance(messages, list):
        messages = iter([talker_start(), *messages])
    return generate(messages, timeout=timeout_s)
