"""The clients against a real gRPC server on plain generated stubs: order, retries, deadlines, cancellation, errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from omni_proto.client import (
    Accepted,
    AsyncOmniClient,
    Event,
    GenerationResult,
    OmniClient,
    OmniRequestError,
    ProtocolError,
    StageFailed,
    TextDelta,
    image_part,
    user,
)
from omni_proto.rpc.options import server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import (
    GenerateRequest,
    GenerateResponse,
    GetStageRequest,
    GetStageResponse,
)

Context = grpc.aio.ServicerContext
Script = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One call as the server sees it."""

    attempt: int
    requests: AsyncIterator[GenerateRequest]
    context: Context
    metadata: dict[str, str | bytes]

    async def accept(self) -> None:
        await self.say(accepted=events_pb2.Accepted(request_id="r", accepted_unix_ns=1))

    async def say(self, **message: Any) -> None:
        await self.context.write(GenerateResponse(stage="thinker", **message))

    async def fail(self, code: grpc.StatusCode, message: str, retry_ms: int | None = None, reason: str = "") -> None:
        status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            info = error_details_pb2.ErrorInfo(reason=reason, metadata={"stage": "talker", "request_id": "r"})
            status.details.add().Pack(info)
        if retry_ms is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(retry_ms)
            status.details.add().Pack(retry)
        await self.context.abort_with_status(rpc_status.to_status(status))


@dataclass
class Stage(stage_service_pb2_grpc.StageServiceServicer):
    """A stage that plays a script."""

    script: Script
    calls: list[Call] = field(default_factory=list)
    called: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, requests: AsyncIterator[GenerateRequest], context: Context) -> None:
        call = Call(len(self.calls) + 1, requests, context, dict(context.invocation_metadata() or ()))
        self.calls.append(call)
        self.called.set()
        try:
            await self.script(call)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def GetStage(self, request: GetStageRequest, context: Context) -> GetStageResponse:
        return GetStageResponse(stage="thinker", component="generic/llm")


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[Stage, str]]:
    stage = Stage(script)
    server = grpc.aio.server(options=server_options())
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(stage, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield stage, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def run_async(target: str, **arguments: Any) -> GenerationResult:
    async with AsyncOmniClient(target) as client:
        return await client.run(**arguments)


async def run_blocking(target: str, **arguments: Any) -> GenerationResult:
    def run() -> GenerationResult:
        with OmniClient(target) as client:
            return client.run(**arguments)

    return await asyncio.to_thread(run)


Run = Callable[..., Awaitable[GenerationResult]]
both = pytest.mark.parametrize("run", [run_async, run_blocking], ids=["asyncio", "blocking"])


async def hello(call: Call) -> None:
    await call.accept()
    await call.say(text=events_pb2.TextDelta(text="hel"))
    await call.say(text=events_pb2.TextDelta(text="lo"))
    await call.say(finished=events_pb2.StageFinished(finish_reason=events_pb2.FINISH_REASON_STOP))
    await call.say(summary=events_pb2.Summary(request_id="r", total_ns=5))


@both
async def test_a_request_runs_to_its_end(run: Run) -> None:
    async with serving(hello) as (stage, target):
        result = await run(target, raw_text="hi", request_id="req-1", traceparent="00-1-2-01", timeout=20)
    assert (result.text, result.request_id) == ("hello", "r")
    assert result.finished["thinker"].finish_reason == "stop"
    assert result.summary is not None
    assert stage.calls[0].metadata["x-request-id"] == "req-1"
    assert stage.calls[0].metadata["traceparent"] == "00-1-2-01"


@both
async def test_messages_arrive_in_order_and_whole(run: Run) -> None:
    seen: list[GenerateRequest] = []

    async def script(call: Call) -> None:
        seen.append(await anext(call.requests))
        # What comes after Start waits for Accepted: a stage that refuses is sent no media.
        second = asyncio.ensure_future(anext(call.requests))
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done
        await call.accept()
        seen.append(await second)
        async for request in call.requests:
            seen.append(request)
        await call.say(text=events_pb2.TextDelta(text="hello"))

    large = b"\x89PNG\r\n\x1a\n" + bytes(5 * 1024 * 1024)
    async with serving(script) as (_, target):
        await run(target, chat=[user("look", image_part(large))], timeout=20)
    kinds = [request.WhichOneof("message") for request in seen]
    assert kinds == ["start", *["media"] * 6, "end"]
    assert b"".join(request.media.data for request in seen[1:-1]) == large


@both
async def test_the_deadline_reaches_the_server_and_ends_the_call(run: Run) -> None:
    remaining: list[float] = []

    async def script(call: Call) -> None:
        remaining.append(call.context.time_remaining())
        await call.accept()
        await asyncio.Event().wait()

    async with serving(script) as (stage, target):
        with pytest.raises(OmniRequestError) as caught:
            await run(target, raw_text="hi", timeout=1.0)
        await asyncio.wait_for(stage.cancelled.wait(), 20)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < remaining[0] <= 1.1
    assert len(stage.calls) == 1


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
        result = await run(target, raw_text="hi", timeout=30)
    assert result.text == "hello"
    assert len(stage.calls) == 3


@both
async def test_a_call_that_a_server_cancels_as_it_shuts_down_is_tried_again(run: Run) -> None:
    async def script(call: Call) -> None:
        if call.attempt < 3:
            await call.context.abort(grpc.StatusCode.CANCELLED)
        await hello(call)

    async with serving(script) as (stage, target):
        assert (await run(target, raw_text="hi", timeout=30)).text == "hello"
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
        await asyncio.wait_for(stage.called.wait(), 30)
        await close_either(client)
        with pytest.raises(OmniRequestError) as caught:
            await asyncio.wait_for(asked, 30)
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
        await asyncio.wait_for(refused.wait(), 30)
        await close_either(client)
        with pytest.raises(OmniRequestError):
            await asyncio.wait_for(asked, 30)
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
            await run(target, raw_text="hi", timeout=30)
    assert len(stage.calls) == 1
    assert caught.value.reason == "ENGINE_DEAD"


async def test_what_came_before_a_failure_stands() -> None:
    async def script(call: Call) -> None:
        await call.accept()
        await call.say(text=events_pb2.TextDelta(text="hel"))
        await call.fail(grpc.StatusCode.INTERNAL, "model failed")

    events: list[Event] = []
    async with serving(script) as (_, target), AsyncOmniClient(target) as client:
        with pytest.raises(OmniRequestError, match="model failed"):  # noqa: PT012 - the loop is what is tested
            async for event in client.generate(raw_text="hi"):
                events.append(event)
    assert events == [Accepted("thinker", "r", 1), TextDelta("thinker", "hel")]


@both
async def test_partial_results_carry_the_failure(run: Run) -> None:
    async def script(call: Call) -> None:
        start = await anext(call.requests)
        await call.accept()
        await call.say(text=events_pb2.TextDelta(text="hello" if start.start.allow_partial else ""))
        status = status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message="no voice")
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(reason="MODEL_ERROR", metadata={"stage": "talker"}))
        status.details.append(packed)
        await call.say(failed=events_pb2.StageFailed(status=status))

    async with serving(script) as (_, target):
        result = await run(target, raw_text="hi", allow_partial=True)
    assert result.text == "hello"
    failed = result.failed["thinker"]
    assert isinstance(failed, StageFailed)
    assert (failed.error.reason, failed.error.stage) == ("MODEL_ERROR", "talker")


async def endless(call: Call) -> None:
    await call.accept()
    while True:
        await call.say(text=events_pb2.TextDelta(text="la"))
        await asyncio.sleep(0.01)


async def test_closing_the_generator_cancels_the_call() -> None:
    async with serving(endless) as (stage, target), AsyncOmniClient(target) as client:
        async with contextlib.aclosing(client.generate(raw_text="hi")) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        await asyncio.wait_for(stage.cancelled.wait(), 20)


async def test_cancelling_the_task_cancels_the_call() -> None:
    async with serving(endless) as (stage, target), AsyncOmniClient(target) as client:
        task = asyncio.create_task(client.run(raw_text="hi"))
        await asyncio.wait_for(stage.called.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(stage.cancelled.wait(), 20)


async def test_leaving_a_blocking_loop_cancels_the_call() -> None:
    def leave(target: str) -> None:
        with OmniClient(target) as client:
            for event in client.generate(raw_text="hi"):
                if isinstance(event, TextDelta):
                    break
            # The generator is gone, the client is not: the call must be over now.
            client.get_stage()
            loop.call_soon_threadsafe(left.set)
            done.result(20)

    loop, left = asyncio.get_running_loop(), asyncio.Event()
    async with serving(endless) as (stage, target):
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        thread = asyncio.create_task(asyncio.to_thread(leave, target))
        await asyncio.wait_for(left.wait(), 20)
        await asyncio.wait_for(stage.cancelled.wait(), 20)
        done.set_result(None)
        await thread


@both
@pytest.mark.parametrize("ends_well", [False, True], ids=["refused", "answered"])
async def test_a_call_that_ends_while_media_are_sent_keeps_its_status(run: Run, ends_well: bool) -> None:
    async def script(call: Call) -> None:
        await anext(call.requests)
        if ends_well:
            await hello(call)
        else:
            await call.fail(grpc.StatusCode.INVALID_ARGUMENT, "too large", None, "INVALID_MEDIA")

    image = image_part(b"\x89PNG\r\n\x1a\n" + bytes(12 * 1024 * 1024))
    async with serving(script) as (_, target):
        for _ in range(5):
            if ends_well:
                assert (await run(target, chat=user(image), timeout=60)).text == "hello"
                continue
            with pytest.raises(OmniRequestError) as caught:
                await run(target, chat=user(image), timeout=60)
            assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_MEDIA")


async def silent(call: Call) -> None:
    """Ends with OK and not a word."""


async def text_first(call: Call) -> None:
    await call.say(text=events_pb2.TextDelta(text="hello"))


@both
@pytest.mark.parametrize("script", [silent, text_first])
async def test_a_server_must_accept_first(run: Run, script: Script) -> None:
    async with serving(script) as (stage, target):
        with pytest.raises(ProtocolError, match="accepted"):
            await run(target, raw_text="hi")
    assert len(stage.calls) == 1


@both
async def test_a_server_that_is_not_there_is_unavailable(run: Run) -> None:
    async with serving(hello) as (_, target):
        pass
    with pytest.raises(OmniRequestError) as caught:
        await run(target, raw_text="hi", timeout=30)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


@both
async def test_bytes_that_are_no_answer_are_a_typed_error(run: Run) -> None:
    async def garbage(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        yield b"\xff\xff"

    handler = grpc.method_handlers_generic_handler(
        "omni_proto.stage.v1.StageService", {"Generate": grpc.stream_stream_rpc_method_handler(garbage)}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(OmniRequestError):
            await run(f"127.0.0.1:{port}", raw_text="hi", timeout=20)
    finally:
        await server.stop(None)


async def test_get_stage_by_both_clients() -> None:
    def blocking(target: str) -> str:
        with OmniClient(target) as client:
            return client.get_stage(wait_for_ready=True).component

    async with serving(hello) as (_, target):
        async with AsyncOmniClient(target) as client:
            assert (await client.get_stage()).component == "generic/llm"
        assert await asyncio.to_thread(blocking, target) == "generic/llm"
    with pytest.raises(OmniRequestError):
        await asyncio.to_thread(blocking_short, target)


def blocking_short(target: str) -> None:
    with OmniClient(target) as client:
        client.get_stage(timeout=0.5)
