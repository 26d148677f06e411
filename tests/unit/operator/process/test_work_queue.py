"""The keyed queue: each key waits at most once and is in work at most once, whatever is added meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from omni_kube.api.timing import Backoff
from omni_operator.process.work_queue import SHORTEST_PAUSE_S, WorkQueue
from support.processes.polling import PATIENCE_S


async def _next(queue: WorkQueue[str]) -> str:
    return await asyncio.wait_for(queue.get(), PATIENCE_S)


def _queue(**arguments: float) -> WorkQueue[str]:
    return WorkQueue(debounce_s=0.01, backoff=Backoff(**arguments))


async def test_a_key_added_many_times_comes_once() -> None:
    queue = _queue()
    for _ in range(100):
        queue.add("a")
    assert len(queue) == 1
    assert await _next(queue) == "a"
    queue.done("a")
    assert (len(queue), queue.busy) == (0, 0)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("delay_s", [0.0, 0.0004, 0.002])
def test_a_key_that_is_due_at_once_may_be_added_again(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], delay_s: float
) -> None:
    """uvloop's call_at returns a handle without a time for delays below 0.5 ms. This once crashed the operator."""

    async def add_twice() -> list[str]:
        queue = _queue()
        queue.add("a", delay_s)
        queue.add("a", delay_s)
        queue.add("a", 0.0)
        queue.add("b", delay_s)
        queue.forget("b")
        taken = [await _next(queue)]
        queue.done("a")
        return [*taken, *map(str, (len(queue), queue.busy))]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(add_twice()) == ["a", "0", "0"]


async def test_a_key_added_while_in_work_comes_again_afterwards_and_not_before() -> None:
    queue = _queue()
    queue.add("a")
    await _next(queue)
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.add("b")
    assert await _next(queue) == "b"
    queue.done("a")
    assert await _next(queue) == "a"


async def test_keys_come_in_the_order_in_which_they_are_due() -> None:
    queue = _queue()
    queue.add("late", 0.05)
    queue.add("early", 0.0)
    assert [await _next(queue), await _next(queue)] == ["early", "late"]


async def test_a_sooner_time_replaces_a_later_one_and_not_the_other_way_round() -> None:
    queue = _queue()
    queue.add("a", 3600.0)
    queue.add("a", 0.01)
    queue.add("a", 3600.0)
    assert await _next(queue) == "a"


async def test_done_may_ask_for_another_look() -> None:
    """done(key, again_after_s) queues the key again after that time."""
    queue = _queue()
    queue.add("a")
    await _next(queue)
    queue.done("a", again_after_s=0.01)
    assert await _next(queue) == "a"


async def test_failures_grow_the_pause_and_success_forgets_them() -> None:
    queue = _queue(first_s=0.01, longest_s=0.04)
    pauses = []
    queue.add("a")
    for _ in range(5):
        await _next(queue)
        pauses.append(queue.retry("a"))
    assert queue.failures("a") == 5
    assert pauses[0] <= 0.01
    assert 0.03 <= pauses[-1] <= 0.04
    await _next(queue)
    queue.done("a")
    assert queue.failures("a") == 0


async def test_the_server_may_ask_for_a_longer_pause() -> None:
    """The pause of retry() is at_least_s, which the API server asked for, if that is longer than the backoff."""
    queue = _queue(first_s=0.01)
    queue.add("a")
    await _next(queue)
    assert queue.retry("a", at_least_s=77.0) == 77.0


async def test_an_event_shortens_the_pause_after_a_failure_but_not_to_zero() -> None:
    """After a failure, a new event shortens the pause to SHORTEST_PAUSE_S."""
    queue = _queue(first_s=3600.0, longest_s=3600.0)
    queue.add("a")
    await _next(queue)
    queue.retry("a")
    queue.add("a")
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await _next(queue) == "a"
    assert loop.time() - began >= SHORTEST_PAUSE_S * 0.9


async def test_an_event_while_in_work_also_shortens_the_pause() -> None:
    """An event that comes while the key is in work also shortens the pause after its failure."""
    queue = _queue(first_s=3600.0, longest_s=3600.0)
    queue.add("a")
    await _next(queue)
    queue.add("a")
    queue.retry("a")
    assert await _next(queue) == "a"


async def test_forget_drops_what_waits() -> None:
    queue = _queue()
    queue.add("timer", 3600.0)
    queue.add("ready", 0.0)
    await asyncio.sleep(0.02)
    for key in ("timer", "ready", "unknown"):
        queue.forget(key)
    assert len(queue) == 0
    queue.add("b")
    assert await _next(queue) == "b"


async def test_a_key_that_is_forgotten_in_work_does_not_come_again() -> None:
    queue = _queue()
    queue.add("a")
    await _next(queue)
    queue.add("a")
    queue.forget("a")
    queue.done("a")
    assert len(queue) == 0


async def test_the_oldest_work_is_known() -> None:
    """longest_due_s() is how long the oldest key has been ready or in work."""
    queue = _queue()
    assert queue.longest_due_s() == 0.0
    queue.add("a", 0.0)
    await asyncio.sleep(0.05)
    waiting = queue.longest_due_s()
    assert waiting > 0.0, "the key is ready and no worker has taken it"
    await _next(queue)
    assert queue.longest_due_s() >= 0.0
    queue.done("a")
    assert queue.longest_due_s() == 0.0


@pytest.mark.parametrize(("failures", "longest"), [(1, 0.25), (2, 0.5), (3, 1.0), (8, 15.0), (100_000, 15.0)], ids=str)
def test_backoff_doubles_up_to_its_end(failures: int, longest: float) -> None:
    pause = Backoff().pause(failures)
    assert 0.75 * longest <= pause <= longest


async def test_tenants_take_turns_and_none_has_all_workers() -> None:
    queue: WorkQueue[str] = WorkQueue(debounce_s=0.0, group_of=lambda key: key[0], max_per_group=2)
    for key in ("a1", "a2", "a3", "a4", "b1", "c1"):
        queue.add(key, 0.0)
    await asyncio.sleep(0.01)
    assert [await _next(queue) for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not waiting.done(), "group a has reached max_per_group"
    queue.add("b2", 0.0)
    assert await asyncio.wait_for(waiting, PATIENCE_S) == "b2"
    queue.done("a1")
    assert await _next(queue) == "a3"
    queue.forget("a4")
    assert len(queue) == 0


async def test_another_tenants_key_does_not_wait_behind_a_thousand() -> None:
    queue: WorkQueue[tuple[str, int]] = WorkQueue(debounce_s=0.0, group_of=lambda key: key[0])
    for number in range(1000):
        queue.add(("many", number), 0.0)
    await asyncio.sleep(0.01)
    queue.add(("one", 0), 0.0)
    await asyncio.sleep(0.01)
    assert {(await _next(queue))[0], (await _next(queue))[0]} == {"many", "one"}


async def test_a_backlog_that_shrinks_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as workers complete keys, the queue is not stuck, however long other keys wait for a worker.

    The liveness probe once killed the operator while it worked through 400 new pipelines of sixteen stages.
    """
    queue, loop = _queue(), asyncio.get_running_loop()
    clock = loop.time()
    for number in range(50):
        queue.add(str(number), 0.0)
    await asyncio.sleep(0.01)
    monkeypatch.setattr(loop, "time", lambda: clock)
    for _ in range(40):
        key = await queue.get()
        clock += 10.0
        assert queue.stuck_s() <= 10.1
        queue.done(key)
    assert queue.longest_due_s() > 300, "the keys have waited for a long time"
    clock += 500.0
    # Not 500: adding 500 to the clock's float may round down.
    assert queue.stuck_s() > 499.0, "keys are ready and no worker takes them"
    queue.begin()
    assert queue.stuck_s() == 0.0


async def test_a_key_in_work_for_long_is_stuck_whatever_else_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, loop = _queue(), asyncio.get_running_loop()
    queue.add("slow", 0.0)
    await _next(queue)
    clock = loop.time() + 500.0
    queue.add("quick", 0.0)
    await _next(queue)
    monkeypatch.setattr(loop, "time", lambda: clock)
    queue.done("quick")
    assert queue.stuck_s() >= 499.0
