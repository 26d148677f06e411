"""Callers get their turns one after the other, however many forms one of them sends."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from omni_stage.errors import TooManyRequestsError
from omni_stage.forms.trial_pool import Turns


async def test_a_caller_with_many_forms_does_not_delay_another() -> None:
    turns, order = Turns(places=1, waiting=8), list[str]()

    async def work(caller: str) -> None:
        async with turns.place(caller):
            order.append(caller)
            await asyncio.sleep(0)

    async with turns.place("first"):
        tasks = [asyncio.create_task(work("greedy")) for _ in range(5)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work("modest")))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order.index("modest") == 1
    assert sorted(order) == ["greedy"] * 5 + ["modest"]


async def test_the_forms_of_one_caller_that_wait_are_limited() -> None:
    turns = Turns(places=1, waiting=2)

    async def work(caller: str) -> None:
        async with turns.place(caller):
            pass

    async with turns.place("first"):
        tasks = [asyncio.create_task(work("greedy")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError):
            await work("greedy")
        other = asyncio.create_task(work("other"))
        await asyncio.sleep(0)
        assert not other.done()
    await asyncio.gather(*tasks, other)


@pytest.mark.parametrize("has_turn", [False, True])
async def test_a_caller_who_left_frees_the_place(has_turn: bool) -> None:
    turns = Turns(places=1, waiting=2)
    entered = asyncio.Event()

    async def work() -> None:
        async with turns.place("leaver"):
            entered.set()

    async with turns.place("first"):
        leaver = asyncio.create_task(work())
        await asyncio.sleep(0)
        if not has_turn:
            leaver.cancel()
            await asyncio.sleep(0)
    leaver.cancel()
    with suppress(asyncio.CancelledError):
        await leaver
    assert not entered.is_set()
    async with asyncio.timeout(5), turns.place("next"):
        pass
