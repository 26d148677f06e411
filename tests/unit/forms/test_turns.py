"""Clients and their users get their turns one after the other, however many forms one of them sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import pytest

from omni_proto.runtime.limits import USERS, Client
from omni_stage.errors import TooManyRequestsError
from omni_stage.forms.trial_pool import TrialTurns
from support.processes.polling import PATIENCE_S

FIRST = Client("first")


async def let_all_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def order_of(turns: TrialTurns, arrivals: Sequence[Client]) -> list[Client]:
    """Returns the clients in the order of their turns, all of whom arrive while the only place is taken."""
    order = list[Client]()

    async def work(client: Client) -> None:
        async with turns.place(client):
            order.append(client)
            await asyncio.sleep(0)

    async with turns.place(FIRST):
        tasks = []
        for client in arrivals:
            tasks.append(asyncio.create_task(work(client)))
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return order


async def test_a_user_with_many_forms_does_not_delay_another() -> None:
    greedy, modest = Client("gateway", "greedy"), Client("gateway", "modest")
    order = await order_of(TrialTurns(places=1), [*[greedy] * 5, modest])
    assert order.index(modest) == 1
    assert order.count(greedy) == 5


async def test_a_client_that_invents_users_gets_the_turns_of_one() -> None:
    inventor, modest = [Client("stranger", f"u{number}") for number in range(6)], Client("gateway", "alice")
    order = await order_of(TrialTurns(places=1), [*inventor, modest, modest])
    assert [order.index(modest), len(order) - order[::-1].index(modest)] == [1, 4]
    assert [client for client in order if client != modest] == inventor


async def test_the_last_place_is_never_held_by_one_user_alone() -> None:
    turns, greedy, other = TrialTurns(places=2), Client("gateway", "greedy"), Client("gateway", "other")
    async with turns.place(greedy):
        second = asyncio.create_task(AsyncExitStack().enter_async_context(turns.place(greedy)))
        await let_all_run()
        assert not second.done()
        async with asyncio.timeout(PATIENCE_S), turns.place(other):
            pass
        assert not second.done()
    await asyncio.wait_for(second, PATIENCE_S)


@pytest.mark.parametrize("invents", [False, True])
async def test_the_forms_of_one_caller_that_wait_are_limited(invents: bool) -> None:
    turns, most = TrialTurns(places=1, waiting=2), 2 * USERS if invents else 2
    callers = [Client("greedy", str(number) if invents else "") for number in range(most + 1)]

    async def work(client: Client) -> None:
        async with turns.place(client):
            pass

    async with turns.place(FIRST):
        tasks = [asyncio.create_task(work(caller)) for caller in callers[:-1]]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError):
            await work(callers[-1])
        other = asyncio.create_task(work(Client("other")))
        await let_all_run()
        assert not other.done()
    await asyncio.gather(*tasks, other)


@pytest.mark.parametrize("has_turn", [False, True])
async def test_a_caller_who_left_frees_the_place(has_turn: bool) -> None:
    turns = TrialTurns(places=1, waiting=2)
    entered = asyncio.Event()

    async def work() -> None:
        async with turns.place(Client("leaver")):
            entered.set()

    async with turns.place(FIRST):
        leaver = asyncio.create_task(work())
        await asyncio.sleep(0)
        if not has_turn:
            leaver.cancel()
            await asyncio.sleep(0)
    leaver.cancel()
    with suppress(asyncio.CancelledError):
        await leaver
    assert not entered.is_set()
    async with asyncio.timeout(PATIENCE_S), turns.place(Client("next")):
        pass
