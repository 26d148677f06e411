"""Started begins a coroutine immediately. Results, errors and cancellation are those of a plain await."""

from __future__ import annotations

import asyncio

import pytest

from omni_stage.service.edges.downstream_call import Started
from support.processes.polling import until


class Work:
    """A coroutine that waits for its gate `waits` times, and `seen`, the list of what happened to it."""

    def __init__(self, waits: int, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.seen: list[str] = []
        self._waits = waits
        self._error = error

    async def run(self) -> str:
        self.seen.append("began")
        try:
            for _ in range(self._waits):
                await self.gate.wait()
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            await asyncio.sleep(0)
            self.seen.append("cleaned up")
            raise
        finally:
            self.seen.append("ended")
        return "done"


@pytest.mark.parametrize("waits", [0, 1, 3])
async def test_it_begins_at_once_and_ends_as_an_await_would(waits: int) -> None:
    work = Work(waits)
    started = Started(work.run())
    assert work.seen[0] == "began", "before any turn of the event loop"
    work.gate.set()
    assert await started == "done"
    assert work.seen == ["began", "ended"]


@pytest.mark.parametrize("waits", [0, 1])
async def test_an_error_comes_with_the_await(waits: int) -> None:
    work = Work(waits, ValueError("broken"))
    started = Started(work.run())
    work.gate.set()
    with pytest.raises(ValueError, match="broken"):
        await started


async def test_what_it_waits_for_may_come_before_the_await() -> None:
    work = Work(1)
    started = Started(work.run())
    work.gate.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert await started == "done"


async def test_a_cancellation_reaches_it() -> None:
    work = Work(1)

    async def consume() -> str:
        return await Started(work.run())

    task = asyncio.create_task(consume())
    await until(lambda: work.seen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.seen == ["began", "cancelled", "cleaned up", "ended"]


async def test_a_cancellation_that_it_overcomes_does_not_end_it() -> None:
    gate = asyncio.Event()

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await gate.wait()
        return "done"

    async def consume() -> str:
        return await Started(stubborn())

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await task == "done"


async def test_close_ends_what_nobody_awaits() -> None:
    work = Work(1)
    started = Started(work.run())
    started.close()
    assert work.seen == ["began", "ended"]
