"""A caller that stops early cancels its call, with either client and however it stops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib

import pytest

from omni_proto.client import AsyncOmniClient, OmniClient, TextDelta
from omni_proto.stage.v1 import events_pb2
from support.peers.plain_servers import Call, serving
from support.processes.polling import PATIENCE_S


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
        await asyncio.wait_for(stage.cancelled.wait(), PATIENCE_S)


async def test_cancelling_the_task_cancels_the_call() -> None:
    async with serving(endless) as (stage, target), AsyncOmniClient(target) as client:
        task = asyncio.create_task(client.run(raw_text="hi"))
        await asyncio.wait_for(stage.called.wait(), PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(stage.cancelled.wait(), PATIENCE_S)


async def test_leaving_a_blocking_loop_cancels_the_call() -> None:
    def leave(target: str) -> None:
        with OmniClient(target) as client:
            for event in client.generate(raw_text="hi"):
                if isinstance(event, TextDelta):
                    break
            # The generator is deleted, but the client is still open. The call must be cancelled all the same.
            client.get_stage()
            loop.call_soon_threadsafe(left.set)
            done.result(20)

    loop, left = asyncio.get_running_loop(), asyncio.Event()
    async with serving(endless) as (stage, target):
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        thread = asyncio.create_task(asyncio.to_thread(leave, target))
        await asyncio.wait_for(left.wait(), PATIENCE_S)
        await asyncio.wait_for(stage.cancelled.wait(), PATIENCE_S)
        done.set_result(None)
        await thread
