"""The asyncio and the blocking client against a real gRPC server: order, deadlines, failures and errors."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from omni_proto.client import (
    Accepted,
    ArgumentError,
    AsyncOmniClient,
    Event,
    OmniClient,
    OmniRequestError,
    ProtocolError,
    StageFailed,
    TextDelta,
    image_part,
    user,
)
from omni_proto.stage.v1 import events_pb2
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from support.peers.answering_entry import WORDS, serve_entry
from support.peers.plain_servers import Call, Context, Run, Script, both, hello, serving
from support.processes.polling import PATIENCE_S, until


@both
async def test_a_request_runs_to_its_end(run: Run) -> None:
    async with serving(hello) as (stage, target):
        result = await run(target, raw_text="hi", request_id="req-1", traceparent="00-1-2-01", timeout=PATIENCE_S)
    assert (result.text, result.request_id) == ("hello", "r")
    assert result.finished["thinker"].finish_reason == "stop"
    assert result.summary is not None
    assert stage.calls[0].metadata["x-request-id"] == "req-1"
    assert stage.calls[0].metadata["traceparent"] == "00-1-2-01"


@both
async def test_a_timeout_beyond_grpcs_clock_does_not_fail_the_call(run: Run) -> None:
    async with serving(hello) as (_, target):
        assert (await run(target, raw_text="hi", timeout=threading.TIMEOUT_MAX)).text == "hello"


def test_an_asyncio_client_belongs_to_the_event_loop_of_its_first_call() -> None:
    with serve_entry() as (port, _):
        client = AsyncOmniClient(f"127.0.0.1:{port}")  # no loop is running, as at the top level of a module
        assert asyncio.run(client.run(text="hi", timeout=PATIENCE_S)).text == "".join(WORDS)
        for call in (lambda: client.run(text="hi"), client.get_stage):
            with pytest.raises(ArgumentError, match="make one in each event loop"):
                asyncio.run(call())
        asyncio.run(client.close())


@both
async def test_messages_arrive_in_order_and_whole(run: Run) -> None:
    seen: list[GenerateRequest] = []

    async def script(call: Call) -> None:
        seen.append(await anext(call.requests))
        # The client sends nothing after Start until Accepted arrives, so a stage that refuses gets no media.
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
        await run(target, chat=[user("look", image_part(large))], timeout=PATIENCE_S)
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
            await run(target, raw_text="hi", timeout=5.0)
        await asyncio.wait_for(stage.cancelled.wait(), PATIENCE_S)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < remaining[0] <= 5.1
    assert len(stage.calls) == 1


async def test_events_before_a_failure_are_delivered() -> None:
    """Events that arrive before a failure are delivered before the error is raised."""

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
                assert (await run(target, chat=user(image), timeout=PATIENCE_S)).text == "hello"
                continue
            with pytest.raises(OmniRequestError) as caught:
                await run(target, chat=user(image), timeout=PATIENCE_S)
            assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_MEDIA")


async def test_media_are_freed_once_they_are_sent() -> None:
    """Nothing is sent again after Accepted, so a call that lasts minutes does not keep its media in memory."""
    arrived = asyncio.Event()

    async def script(call: Call) -> None:
        await anext(call.requests)
        await call.accept()
        async for _ in call.requests:
            pass
        arrived.set()
        await asyncio.Event().wait()

    image = b"\x89PNG\r\n\x1a\n" + bytes(5 * 1024 * 1024)
    ours = sys.getrefcount(image)
    async with (
        serving(script) as (_, target),
        AsyncOmniClient(target) as client,
        aclosing(client.generate(chat=user(image_part(image)))) as events,
    ):
        await anext(events)
        reading = asyncio.ensure_future(anext(events))
        await asyncio.wait_for(arrived.wait(), PATIENCE_S)
        assert sys.getrefcount(image) == ours
        reading.cancel()
        await asyncio.wait({reading})


@pytest.mark.parametrize("kind", [OmniClient, AsyncOmniClient])
async def test_run_frees_media_once_they_are_sent(kind: type[OmniClient | AsyncOmniClient]) -> None:
    arrived = asyncio.Event()

    async def script(call: Call) -> None:
        await anext(call.requests)
        await call.accept()
        async for _ in call.requests:
            pass
        arrived.set()
        await asyncio.Event().wait()

    image = b"\x89PNG\r\n\x1a\n" + bytes(5 * 1024 * 1024)
    ours = sys.getrefcount(image)
    async with serving(script) as (_, target):
        client = kind(target)
        if isinstance(client, OmniClient):
            running = asyncio.ensure_future(asyncio.to_thread(lambda: client.run(chat=user(image_part(image)))))
        else:
            running = asyncio.ensure_future(client.run(chat=user(image_part(image))))
        await asyncio.wait_for(arrived.wait(), PATIENCE_S)
        # The client's thread may still be in the turn in which it sent the last message.
        await until(lambda: sys.getrefcount(image) == ours)
        closing = client.close()
        if closing is not None:
            await closing
        with pytest.raises(OmniRequestError):
            await running


async def silent(call: Call) -> None:
    """Ends the call with OK without sending a message."""


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
        await run(target, raw_text="hi", timeout=PATIENCE_S)
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
            await run(f"127.0.0.1:{port}", raw_text="hi", timeout=PATIENCE_S)
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
