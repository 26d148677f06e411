"""The clients retry some failures before Accepted, none after it, and none once the client is closed."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from omni_proto.client import AsyncOmniClient, GenerationResult, OmniClient, OmniRequestError
from omni_proto.stage.v1 import events_pb2
from support.peers.plain_servers import Call, Run, both, hello, serving
from support.processes.polling import PATIENCE_S


@both
@pytest.mark.parametrize(
    ("code", "retry_ms"),
    [(grpc.StatusCode.UNAVAILABLE, None), (grpc.StatusCode.RESOURCE_EXHAUSTED, 10), (grpc.StatusCode.UNAVAILABLE, 10)],
    ids=["unavailable", "exhausted with RetryInfo", "unavailable with RetryInfo"],
)
async def test_before_accepted_a_request_is_tried_again(run: Run, code: grpc.StatusCode, retry_ms: int | None) -> None:
    async def script(call: Call) -> None:
        if call.attempt < 3:
            await call.fail(code, "not now", retry_ms)
        await hello(call)

    async with serving(script) as (stage, target):
        result = await run(target, raw_text="hi", timeout=PATIENCE_S)
    assert result.text == "hello"
    assert len(stage.calls) == 3


@both
async def test_a_call_that_a_server_cancels_as_it_shuts_down_is_tried_again(run: Run) -> None:
    async def script(call: Call) -> None:
        if call.attempt < 3:
            await call.context.abort(grpc.StatusCode.CANCELLED)
        await hello(call)

    async with serving(script) as (stage, target):
        assert (await run(target, raw_text="hi", timeout=PATIENCE_S)).text == "hello"
    assert len(stage.calls) == 3


async def close_either(client: AsyncOmniClient | OmniClient) -> None:
    if isinstance(client, AsyncOmniClient):
        await client.close()
    else:
        await asyncio.to_thread(client.close)


async def call_either(client: AsyncOmniClient | OmniClient) -> GenerationResult:
    if isinstance(client, AsyncOmniClient):
        return await client.run(text="hi")
    return await asyncio.to_thread(client.run, text="hi")


both_kinds = pytest.mark.parametrize("kind", [AsyncOmniClient, OmniClient])


@both_kinds
async def test_a_client_that_is_closed_tries_nothing_again(kind: type[AsyncOmniClient | OmniClient]) -> None:
    async def script(call: Call) -> None:
        await asyncio.sleep(60)

    async with serving(script) as (stage, target):
        client = kind(target)
        asked = asyncio.create_task(call_either(client))
        await asyncio.wait_for(stage.called.wait(), PATIENCE_S)
        await close_either(client)
        with pytest.raises(OmniRequestError) as caught:
            await asyncio.wait_for(asked, PATIENCE_S)
    assert caught.value.code is grpc.StatusCode.CANCELLED
    assert len(stage.calls) == 1


@both_kinds
async def test_a_client_that_is_closed_between_two_attempts_ends(kind: type[AsyncOmniClient | OmniClient]) -> None:
    refused = asyncio.Event()

    async def script(call: Call) -> None:
        refused.set()
        await call.fail(grpc.StatusCode.UNAVAILABLE, "not now", 1000)

    async with serving(script) as (stage, target):
        client = kind(target)
        asked = asyncio.create_task(call_either(client))
        await asyncio.wait_for(refused.wait(), PATIENCE_S)
        await close_either(client)
        with pytest.raises(OmniRequestError):
            await asyncio.wait_for(asked, PATIENCE_S)
    assert len(stage.calls) == 1


@both_kinds
async def test_a_closed_client_says_so(kind: type[AsyncOmniClient | OmniClient]) -> None:
    client = kind("127.0.0.1:1")
    await close_either(client)
    with pytest.raises(OmniRequestError, match="closed"):
        await call_either(client)
    with pytest.raises(OmniRequestError, match="closed"):
        await (client.get_stage() if isinstance(client, AsyncOmniClient) else asyncio.to_thread(client.get_stage))


@both
async def test_three_attempts_are_the_last(run: Run) -> None:
    async def script(call: Call) -> None:
        await call.fail(grpc.StatusCode.UNAVAILABLE, f"attempt {call.attempt}", 10, "DRAINING")

    async with serving(script) as (stage, target):
        with pytest.raises(OmniRequestError) as caught:
            await run(target, raw_text="hi")
    assert len(stage.calls) == 3
    assert (caught.value.message, caught.value.reason) == ("attempt 3", "DRAINING")


NOT_RETRIED = {
    "exhausted without RetryInfo": (grpc.StatusCode.RESOURCE_EXHAUSTED, None, None),
    "RetryInfo beyond the deadline": (grpc.StatusCode.RESOURCE_EXHAUSTED, 20_000, 10.0),
    "invalid": (grpc.StatusCode.INVALID_ARGUMENT, None, None),
    "cancelled by a stage": (grpc.StatusCode.CANCELLED, 10, None),
    "internal with RetryInfo": (grpc.StatusCode.INTERNAL, 10, None),
}


@both
@pytest.mark.parametrize(("code", "retry_ms", "timeout_s"), NOT_RETRIED.values(), ids=NOT_RETRIED.keys())
async def test_other_failures_are_final(
    run: Run, code: grpc.StatusCode, retry_ms: int | None, timeout_s: float | None
) -> None:
    async def script(call: Call) -> None:
        await call.fail(code, "no", retry_ms, "SOME_REASON")

    async with serving(script) as (stage, target):
        with pytest.raises(OmniRequestError) as caught:
            await run(target, raw_text="hi", timeout=timeout_s)
    assert len(stage.calls) == 1
    error = caught.value
    assert (error.code, error.reason, error.stage, error.request_id) == (code, "SOME_REASON", "talker", "r")
    assert error.retry_after_s == (None if retry_ms is None else retry_ms / 1000)


@both
@pytest.mark.parametrize("after", ["accepted", "text"])
async def test_after_accepted_nothing_is_tried_again(run: Run, after: str) -> None:
    async def script(call: Call) -> None:
        await call.accept()
        if after == "text":
            await call.say(text=events_pb2.TextDelta(text="hel"))
        await call.fail(grpc.StatusCode.UNAVAILABLE, "engine died", 10, "ENGINE_DEAD")

    async with serving(script) as (stage, target):
        with pytest.raises(OmniRequestError, match="engine died") as caught:
            await run(target, raw_text="hi", timeout=PATIENCE_S)
    assert len(stage.calls) == 1
    assert caught.value.reason == "ENGINE_DEAD"
