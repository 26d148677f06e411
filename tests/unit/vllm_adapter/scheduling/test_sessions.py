"""Sessions that share a KV cache: each is admitted in the end, and can then run to its end, whatever others do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from omni_stage.vllm_adapter.scheduling.sessions import QueueEntry, SessionQueue, SessionRoom, Sessions


@dataclass
class Stream:
    """A session that has entered the engine: it grows token by token, and frees no block before its end."""

    place: QueueEntry
    tokens: int
    longest: int


@st.composite
def crowds(draw: st.DrawFn) -> tuple[SessionRoom, list[tuple[int, int]], int]:
    """Returns a SessionRoom, (length in tokens at the end, priority) of each session, and a seed that decides which
    session grows next."""
    size = draw(st.integers(1, 32))
    room = SessionRoom(draw(st.integers(1, 8)), draw(st.integers(1, 40)), size)
    assert room.blocks is not None
    session = st.tuples(st.integers(1, room.blocks * size), st.integers(-1, 1))
    return room, draw(st.lists(session, min_size=1, max_size=20)), draw(st.integers(0, 1 << 16))


@settings(max_examples=200)
@given(crowds())
def test_every_session_can_always_grow_to_its_end(crowd: tuple[SessionRoom, list[tuple[int, int]], int]) -> None:
    """In a model of vLLM's block pool, an admitted session always gets the blocks it needs, and every session ends.

    Sessions of one priority enter in order of arrival.
    """
    room, asked, seed = crowd
    assert room.blocks is not None
    queue, inside, done, chance = SessionQueue(room), {}, 0, seed
    longest: dict[int, int] = {}
    order: list[QueueEntry] = []

    def enter(places: list[QueueEntry]) -> None:
        for place in places:
            inside[id(place)] = Stream(place, 0, longest[id(place)])
            order.append(place)

    came: list[QueueEntry] = []
    for tokens, priority in asked:
        place, entered = queue.join(tokens, priority)
        came.append(place)
        longest[id(place)] = tokens
        enter(entered)
    while done < len(asked):
        assert inside, "at least one session can always continue"
        assert len(inside) <= room.sessions
        chance = (chance * 1103515245 + 12345) % (1 << 31)
        stream = list(inside.values())[chance % len(inside)]
        used = sum(-(-other.tokens // room.block_tokens) for other in inside.values() if other is not stream)
        stream.tokens += 1
        assert used + -(-stream.tokens // room.block_tokens) <= room.blocks, "vLLM would have no free block"
        if stream.tokens == stream.longest:
            del inside[id(stream.place)]
            done += 1
            enter(queue.leave(stream.place))
    assert (queue.open, queue.held, queue.waiting) == (0, 0, [])
    for priority in {place.priority for place in came}:
        mine = [place for place in came if place.priority == priority]
        assert [place for place in order if place.priority == priority] == mine, (
            "no session overtakes another of its priority"
        )


def test_reach_instead_of_the_longest_sequence() -> None:
    """64 MiB of KV cache at 28 KiB a token hold eight sessions of up to 109 tokens, but only one of 2,048: ADR 0026."""
    queue = SessionQueue(SessionRoom(8, 2340 // 32, 32))
    assert [len(queue.join(45 + 64)[1]) for _ in range(8)] == [1] * 8
    full = SessionQueue(SessionRoom(8, 2340 // 32, 32))
    assert [len(full.join(2048)[1]) for _ in range(8)] == [1] + [0] * 7


def test_layers_that_differ_count_at_full_length() -> None:
    """Where layers need different numbers of blocks, a short session counts as one of full length, here 256 tokens."""
    room = SessionRoom(8, 16, 32, minimum_tokens=256)
    assert [room.blocks_for(tokens) for tokens in (1, 256, 257, 10_000)] == [8, 8, 9, 16]


def test_a_priority_above_0_leaves_a_quarter_and_one_always_enters() -> None:
    """An idle engine admits any session. Otherwise, a priority above 0 gets at most three quarters of the blocks."""
    queue = SessionQueue(SessionRoom(8, 8, 1))
    first, entered = queue.join(8, priority=1)
    assert entered == [first], "an idle engine admits a session of any size"
    second, entered = queue.join(6, priority=1)
    assert not entered
    assert queue.leave(first) == [second]
    urgent, entered = queue.join(2)
    assert entered == [urgent], "a quarter of the blocks is kept for priorities up to 0"


def test_who_leaves_while_it_waits_lets_those_behind_enter() -> None:
    """When a waiting session leaves the queue, the sessions behind it enter if they fit."""
    queue = SessionQueue(SessionRoom(8, 10, 1))
    queue.join(6)
    large, _ = queue.join(8)
    small, entered = queue.join(4)
    assert not entered, "no session overtakes the first in the queue"
    assert queue.leave(large) == [small]


async def test_waiting_ends_with_a_place_or_with_its_caller() -> None:
    """A session waits until it enters or until its caller is cancelled. A cancelled session leaves the queue."""
    sessions, order = Sessions(SessionRoom(1, 4, 1)), []

    async def hold(name: str, until: asyncio.Event) -> None:
        async with sessions.enter(4):
            order.append(name)
            await until.wait()

    ends = {name: asyncio.Event() for name in "abc"}
    tasks = {}
    for name, end in ends.items():
        tasks[name] = asyncio.create_task(hold(name, end))
        await asyncio.sleep(0)
    tasks["b"].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks["b"]
    ends["a"].set()
    ends["c"].set()
    await asyncio.gather(tasks["a"], tasks["c"])
    assert order == ["a", "c"]
    assert (sessions.queue.open, sessions.queue.waiting) == (0, [])
