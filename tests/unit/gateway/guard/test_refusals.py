"""What a client's refused requests cost the others: its further refusals and large bodies wait, nothing else."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from omni_gateway.context import Budget, Gateway, Share
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import StaticPipelines
from omni_gateway.errors import InvalidRequestError
from omni_gateway.guard import refusals
from omni_gateway.guard.body import BodyReader
from omni_gateway.guard.middleware import Guard
from omni_gateway.guard.refusals import BURST_S, LARGE_BYTES, MAX_WAIT_S, MOST_OWED_S, SHARE, Refusals, cost_s
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics
from support.processes.polling import PATIENCE_S, until

MEBI = 1 << 20


class Clock:
    """A clock in seconds that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refuse(found: Refusals, client: str, size: int, count: int) -> list[float]:
    return [found.charge(client, size) for _ in range(count)]


def test_the_first_refusals_are_answered_at_once_and_the_others_wait_longer_and_longer() -> None:
    found = Refusals(Clock(), lambda: 1.0)
    free = int(BURST_S / cost_s(0)) - 1
    assert not any(refuse(found, "a", 0, free))
    waits = refuse(found, "a", 0, 1000)
    assert waits == sorted(waits)
    assert 0 < waits[1] < waits[-1] == MAX_WAIT_S
    assert found.charge("b", 0) == 0, "another client has a bucket of its own"


def test_large_refusals_cost_more() -> None:
    few = Refusals(Clock(), lambda: 1.0)
    assert sum(not wait for wait in refuse(few, "a", 45 * MEBI, 100)) < 4


def test_a_client_may_be_refused_for_a_share_of_the_time() -> None:
    """Also one that goes on while it waits: its requests of an hour together cost no more than that share."""
    clock = Clock()
    found, cost = Refusals(clock, lambda: 1.0), 0.0
    while clock.now < 3700:
        cost += cost_s(MEBI)
        clock.now += max(0.001, found.charge("a", MEBI))
    assert cost < (3600 * SHARE + BURST_S + MOST_OWED_S) * 1.05


def test_a_client_that_stops_is_soon_served_at_once_again() -> None:
    clock = Clock()
    found = Refusals(clock, lambda: 1.0)
    refuse(found, "a", 45 * MEBI, 1000)
    clock.now += (MOST_OWED_S + BURST_S) / SHARE
    assert found.charge("a", 0) == 0


async def test_no_more_refusals_wait_than_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "HELD_PER_CLIENT", 2)
    found = Refusals(Clock(), lambda: 1.0)
    refuse(found, "a", 45 * MEBI, 10)
    held = [asyncio.create_task(found.hold("a", 3600)) for _ in range(2)]
    await asyncio.sleep(0)
    assert found.charge("a", 0) == 0
    for task in held:
        task.cancel()
    await asyncio.wait(held)
    assert found.charge("a", 0) > 0


# Large bodies -----------------------------


def body_of(size: int) -> Receive:
    pieces = [b"x" * LARGE_BYTES, b"x" * LARGE_BYTES, b"x" * (size - 2 * LARGE_BYTES)]

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return receive


async def test_large_bodies_of_an_overdrawn_client_are_read_one_after_another() -> None:
    clock = Clock()
    found = Refusals(clock, lambda: 1.0)
    bodies, budget = BodyReader(64 * MEBI, 3600, slots=8, refusals=found), Budget(512 * MEBI)
    size = 16 * MEBI

    def read(holder: str, size: int) -> asyncio.Task[bytearray]:
        return asyncio.create_task(bodies.read(body_of(size), str(size), Share(budget), holder))

    await asyncio.wait_for(read("a", size), PATIENCE_S)
    refuse(found, "a", size, 20)
    waiting = [read("a", size) for _ in range(2)]
    assert len(await asyncio.wait_for(read("b", size), PATIENCE_S)) == size
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    clock.now += MOST_OWED_S / SHARE + 0.001
    shares = [Share(budget) for _ in range(2)]
    await asyncio.wait_for(bodies.read(body_of(size), str(size), shares[0], "a"), PATIENCE_S)
    assert shares[0].paid == 0, "nothing was owed any more"


async def test_a_body_that_is_paid_for_makes_the_next_one_wait_and_is_given_back() -> None:
    clock = Clock()
    found = Refusals(clock, lambda: 1.0)
    refuse(found, "a", 0, int(BURST_S / cost_s(0)) + 1)
    debt = found.charge("a", 0)
    paying = asyncio.create_task(found.pay("a", MEBI))
    await asyncio.sleep(0)
    assert debt > 0
    assert not paying.done()
    clock.now += 60
    paid = await asyncio.wait_for(paying, PATIENCE_S)
    assert paid == MEBI
    found.refund("a", paid)
    assert found.charge("a", 0) == 0


# The guard --------------------------------


async def no_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_a_held_refusal_has_no_place_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """While refusals of a client wait, its right requests and those of others are answered, and so are probes."""
    for name in ("REQUEST_S", "MAX_WAIT_S", "MOST_OWED_S"):
        monkeypatch.setattr(refusals, name, 3600.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["query_string"]:
            raise InvalidRequestError("wrong")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"right"})

    gateway = Gateway(GatewaySettings(max_requests=1), StaticPipelines(()), Entries(), GatewayMetrics())
    guard = Guard(app, gateway, None, lambda: 1)
    statuses: list[int] = []

    async def ask(path: str, query: bytes = b"", address: str = "10.0.0.1") -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": []}
        await guard({**scope, "client": (address, 1)}, no_more, send)

    held = [asyncio.create_task(ask("/v1/models", b"wrong")) for _ in range(3)]
    await until(lambda: gateway.metrics.registry.get_sample_value("omni_gateway_held_refusals_total") == 3)
    assert gateway.metrics.registry.get_sample_value("omni_gateway_inflight_requests") == 0
    await asyncio.wait_for(ask("/v1/models"), PATIENCE_S)
    await asyncio.wait_for(ask("/v1/models", address="10.0.0.2"), PATIENCE_S)
    await asyncio.wait_for(ask("/health"), PATIENCE_S)
    assert statuses == [200, 200, 200]
    assert guard.budget.left == guard.budget.total
    for task in held:
        task.cancel()
    await asyncio.wait(held)
