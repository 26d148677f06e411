"""A client whose calls are refused too often waits for its next refusals. Nothing else waits."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest
from grpc import StatusCode

from omni_proto.pod_contract import ExitCode, StageMetric
from omni_proto.rpc.options import USER_KEY
from omni_proto.runtime.limits import USERS, Client
from omni_proto.stage_config import Limits
from omni_stage.errors import InvalidRequestError
from omni_stage.service.guard import refusals
from omni_stage.service.guard.refusals import EARLY_S, HeldRefusals, RefusalBuckets
from omni_stage.service.request.reading import RequestReader
from omni_stage.service.request.tracing import user_of
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab

BAD = [lab.END]
"""The messages of a call that does not begin with Start."""
LIMITS = {"refusalsPerSecond": 1, "maxRefusalWait": 10}
BURST = 5
HELD = StageMetric.PIPELINE_HELD_REFUSALS


class Clock:
    """A clock in seconds that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# Buckets ------------------------------------


@pytest.mark.parametrize(
    ("steps", "answers"),
    [
        ("a" * 10, "y" * 10),
        ("a" * 12, "y" * 10 + "nn"),
        ("a" * 12 + "1aaa", "y" * 10 + "nn" + "yyn"),
        ("a" * 12 + "9" + "a" * 11, "y" * 10 + "nn" + "y" * 10 + "n"),
        ("a" * 12 + "bb", "y" * 10 + "nn" + "yy"),
    ],
    ids=["a burst", "beyond it", "a second later", "it fills up to a burst", "another client"],
)
def test_a_client_has_a_rate(steps: str, answers: str) -> None:
    """The rate is two refusals a second, with bursts of ten.

    steps: a letter is a refusal of that client, a digit is a wait in seconds. answers: y is within the rate, n beyond.
    """
    clock = Clock()
    buckets, found = RefusalBuckets(2, clock), ""
    for step in steps:
        if step.isdigit():
            clock.now += int(step)
        else:
            found += "y" if buckets.charge(Client(step)) else "n"
    assert found == answers


def test_users_of_an_address_have_a_rate_each() -> None:
    buckets = RefusalBuckets(1, Clock())
    answers = [buckets.charge(Client("gateway", "mallory")) for _ in range(100)]
    assert answers == [True] * BURST + [False] * 95
    assert buckets.charge(Client("gateway", "alice")), "another user's refusals are counted separately"
    assert buckets.charge(Client("gateway")), "so are those of calls without a user"
    assert buckets.charge(Client("elsewhere", "mallory"))


def test_made_up_users_do_not_escape() -> None:
    """All users of an address together have at most USERS times the rate of one."""
    buckets = RefusalBuckets(1, Clock())
    within = sum(buckets.charge(Client("bad", f"user-{number}")) for number in range(1000))
    assert within == USERS * BURST


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "CLIENTS", 3)
    buckets = RefusalBuckets(1, Clock())
    for client in "abcdef":
        for _ in range(BURST + 1):
            buckets.charge(Client(client))
    assert len(buckets) == 3
    assert [buckets.charge(Client(client)) for client in "fa"] == [False, True], "the oldest clients are forgotten"


def hold(clock: Callable[[], float] = Clock(), **limits: Any) -> HeldRefusals:  # noqa: B008 - this clock is never advanced
    counter = prometheus_client.Counter("held", "held", registry=prometheus_client.CollectorRegistry())
    return HeldRefusals(Limits.model_validate({**LIMITS, **limits}), counter, clock=clock, jitter=lambda: 1.0)


@pytest.mark.parametrize(
    ("code", "reason", "seconds", "counts", "waits"),
    [
        (StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", 0.0, True, True),
        (StatusCode.INVALID_ARGUMENT, "INVALID_MEDIA", 9.0, True, True),
        (StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS", 0.0, True, True),
        (StatusCode.DEADLINE_EXCEEDED, "PREPARE_TIMEOUT", 9.0, True, True),
        (StatusCode.CANCELLED, "CANCELLED", EARLY_S / 2, True, False),
        (StatusCode.CANCELLED, "CANCELLED", EARLY_S * 2, False, False),
        (StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", EARLY_S / 2, True, False),
        (StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", 9.0, False, False),
        (StatusCode.UNAVAILABLE, "DRAINING", 0.0, False, False),
        (StatusCode.UNAVAILABLE, "NOT_READY", 0.0, False, False),
        (StatusCode.INTERNAL, "MODEL_ERROR", 0.0, False, False),
        (StatusCode.OK, "", 0.0, False, False),
    ],
)
def test_what_counts_as_a_refusal(code: StatusCode, reason: str, seconds: float, counts: bool, waits: bool) -> None:
    held = hold()
    waited = [held.charge(Client("a"), code, reason, seconds) for _ in range(BURST + 1)]
    assert waited == [0.0] * BURST + [10.0 if waits else 0.0]
    assert bool(held.charge(Client("a"), StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", 0.0)) is counts


def test_waits_differ_and_can_be_turned_off() -> None:
    counter = prometheus_client.Counter("held", "held", registry=prometheus_client.CollectorRegistry())
    for most, expected in ((10, {8.0, 9.0, 10.0}), (0, {0.0})):
        jitter = iter((0.0, 0.5, 1.0) * 2)
        limits = Limits.model_validate({**LIMITS, "maxRefusalWait": most})
        held = HeldRefusals(limits, counter, clock=Clock(), jitter=lambda: next(jitter))  # noqa: B023
        waits = [held.charge(Client("a"), StatusCode.INVALID_ARGUMENT, "", 0.0) for _ in range(BURST + 3)]
        assert waits[:BURST] == [0.0] * BURST
        assert {round(wait, 6) for wait in waits[BURST:]} == expected


async def test_the_number_of_held_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond HELD_PER_CLIENT or HELD_IN_ALL, refusals are answered immediately."""
    monkeypatch.setattr(refusals, "HELD_PER_CLIENT", 2)
    monkeypatch.setattr(refusals, "HELD_IN_ALL", 3)
    held = hold()
    waiting = [asyncio.create_task(held.hold(Client(one), 60.0, None)) for one in "aaabb"]
    await asyncio.sleep(0)
    await until(lambda: sum(task.done() for task in waiting) == 2)
    assert [task.done() for task in waiting] == [False, False, True, False, True]
    waiting[0].cancel()
    await asyncio.wait({waiting[0]})
    assert len(held) == 2
    held.end()
    await asyncio.gather(*waiting[1:])
    assert len(held) == 0
    await held.hold(Client("a"), 60.0, None)


async def test_an_answer_comes_before_its_deadline() -> None:
    held = hold()
    await held.hold(Client("a"), 60.0, refusals.SPARE_S / 2)
    await held.hold(Client("a"), 60.0, 2 * refusals.SPARE_S)


@pytest.mark.parametrize(
    ("value", "user"), [("u-1_Z", "u-1_Z"), ("", ""), ("a b", ""), ("x" * 64, "x" * 64), ("x" * 65, ""), ("ü", "")]
)
def test_the_name_of_a_user(value: str, user: str) -> None:
    assert user_of([("other", "a"), (USER_KEY, value)]) == user
    assert user_of(None) == ""


# A stage ------------------------------------


async def begin_held(stage: Any, **call: Any) -> tuple[Any, asyncio.Task[Any]]:
    """Makes refused calls until one is held. Returns that call and the task that waits for its answer."""
    while True:
        refused = stage.stub.Generate(iter(BAD), timeout=PATIENCE_S, **call)
        task = asyncio.create_task(lab.collect(refused))
        await until(lambda: task.done() or len(stage.server.held) == 1)  # noqa: B023
        if not task.done():
            return refused, task


async def test_one_mistake_is_answered_at_once(kit: Any) -> None:
    stage = await kit.serve(limits=LIMITS)
    answer = await lab.ask(stage, BAD)
    assert (answer.code, answer.info.reason) == (StatusCode.INVALID_ARGUMENT, "PROTOCOL_VIOLATION")
    assert stage.metric(HELD) == 0


async def test_callers_in_a_loop_are_slowed_and_others_are_not(kit: Any) -> None:
    """All callers have the same address. The longer the test takes, for example on a slow machine, the more refusals it
    allows."""
    stage = await kit.serve(limits={**LIMITS, "maxRefusalWait": 2, "maxConcurrentRequests": 2})
    refused: list[StatusCode] = []
    stop = asyncio.Event()

    async def loop() -> None:
        while not stop.is_set():
            refused.append((await lab.ask(stage, BAD)).code)

    began = time.monotonic()
    loops = [asyncio.create_task(loop()) for _ in range(32)]
    await until(lambda: len(stage.server.held) >= 24)
    well_behaved = [await lab.ask(stage) for _ in range(30)]
    assert {answer.text for answer in well_behaved} == {"Hello"}
    assert await stage.server.in_flight.wait_idle(PATIENCE_S)
    assert (len(stage.server.in_flight), stage.server.admission.requests, stage.server.admission.bytes) == (0, 0, 0)
    assert len(stage.server.runtime.starting) == 0
    assert stage.metric(StageMetric.INFLIGHT_REQUESTS) == 0
    stop.set()
    await asyncio.gather(*loops)
    passed = time.monotonic() - began
    # At most the burst, one more for each second that passed, and one per shortest wait of each caller.
    shortest = 2 * refusals.MIN_JITTER
    assert len(refused) <= BURST + passed + 32 * (1 + passed / shortest)
    assert set(refused) == {StatusCode.INVALID_ARGUMENT}
    assert (stage.metric(HELD) or 0) >= 24


def find_readers() -> set[int]:
    """Returns the ids of all RequestReaders, which hold the messages of requests."""
    return {id(one) for one in gc.get_objects() if isinstance(one, RequestReader)}


async def test_a_held_call_keeps_nothing_of_its_request(kit: Any) -> None:
    stage = await kit.serve(limits=LIMITS)
    gc.collect()
    gc.disable()
    # Other tests in this process may have left some readers.
    earlier = find_readers()
    try:
        _, answer = await begin_held(stage)
        assert find_readers() <= earlier
    finally:
        gc.enable()
    stage.server.held.end()
    assert (await answer).code is StatusCode.INVALID_ARGUMENT


async def test_a_caller_that_leaves_is_not_held(kit: Any) -> None:
    stage = await kit.serve(limits=LIMITS)
    call, answer = await begin_held(stage)
    call.cancel()
    await until(lambda: len(stage.server.held) == 0)
    await asyncio.wait({answer})


async def test_a_deadline_is_kept(kit: Any) -> None:
    """A held refusal is answered before its call's deadline. A machine that stalls may miss that a few times."""
    stage = await kit.serve(limits=LIMITS)
    for _ in range(BURST + 20):
        held = stage.metric(HELD)
        code = (await lab.ask(stage, BAD, timeout_s=1)).code
        assert code in (StatusCode.INVALID_ARGUMENT, StatusCode.DEADLINE_EXCEEDED)
        if stage.metric(HELD) > held and code is StatusCode.INVALID_ARGUMENT:
            return
    pytest.fail("every held call reached its deadline")


async def test_a_drain_answers_held_refusals(kit: Any) -> None:
    """A drain answers the held refusals immediately."""
    stage = await kit.serve(limits=LIMITS, timeouts={"drainNotice": 0.0})
    _, answer = await begin_held(stage)
    stop = asyncio.Event()
    served = asyncio.create_task(stage.server.serve(stop, asyncio.Event()))
    stop.set()
    assert (await answer).code is StatusCode.INVALID_ARGUMENT
    assert await served is ExitCode.DRAINED


async def test_users_that_a_client_names_wait_apart(kit: Any) -> None:
    """While a refusal of one user is held, another user's refusal is answered immediately."""
    stage = await kit.serve(limits=LIMITS)
    _, answer = await begin_held(stage, metadata=[(USER_KEY, "mallory")])
    assert (await lab.ask(stage, BAD, metadata=[(USER_KEY, "alice")])).code is StatusCode.INVALID_ARGUMENT
    assert (stage.metric(HELD), answer.done()) == (1, False)
    stage.server.held.end()
    await answer


async def test_stages_answer_one_another_at_once(kit: Any) -> None:
    """The entry relays a downstream stage's refusal and does not count it."""
    first, middle, last = await kit.chain(talker=lab.failing(InvalidRequestError("no")), limits=LIMITS)
    assert (middle.server.held, last.server.held) == (None, None)
    for _ in range(2 * BURST):
        answer = await lab.ask(first)
        assert (answer.code, answer.info.metadata["stage"]) == (StatusCode.INVALID_ARGUMENT, "talker")
    assert first.metric(HELD) == 0
    for _ in range(BURST):
        await lab.ask(first, BAD)
    assert first.metric(HELD) == 0, "no refusal had been counted before"
