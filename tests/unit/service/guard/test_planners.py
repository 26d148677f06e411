"""Requests that are planned in threads are bounded in number, and cancelled ones leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from omni_stage.errors import TooManyRequestsError
from omni_stage.service.guard.admission import PLANNING_THREADS, Planners
from support.processes.polling import PATIENCE_S, until

MOST = 4


class Start:
    """What a waiting request holds."""

    def __init__(self, opened: threading.Event) -> None:
        self._opened = opened

    def plan(self) -> str:
        self._opened.wait(PATIENCE_S)
        return "planned"


async def test_what_waits_is_bounded_and_ends_with_its_caller() -> None:
    opened = threading.Event()
    planners = Planners(MOST)
    starts = [Start(opened) for _ in range(MOST)]
    calls = [asyncio.create_task(planners.plan(start.plan)) for start in starts]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequestsError, match=f"at most {MOST} large requests"):
        await planners.plan(Start(opened).plan)
    waiting = weakref.ref(starts[-1])
    for call in calls[PLANNING_THREADS:]:
        call.cancel()
    await asyncio.wait(calls[PLANNING_THREADS:])
    del starts, calls[PLANNING_THREADS:], call
    gc.collect()
    assert waiting() is None, "a request whose caller left is freed before its turn"
    more = asyncio.create_task(planners.plan(Start(opened).plan))
    opened.set()
    assert await asyncio.gather(*calls, more) == ["planned"] * (PLANNING_THREADS + 1)
    planners.shutdown()


async def test_a_plan_whose_caller_left_keeps_its_thread_until_it_ends() -> None:
    """If it freed its thread earlier, callers that come and go would fill the executor's queue with useless work."""
    opened = threading.Event()
    planners = Planners(MOST)
    calls = [asyncio.create_task(planners.plan(Start(opened).plan)) for _ in range(PLANNING_THREADS)]
    await until(lambda: planners._free.locked())
    for call in calls:
        call.cancel()
    await asyncio.sleep(0)
    assert planners._planning == PLANNING_THREADS
    opened.set()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)
    assert planners._planning == 0
    planners.shutdown()
