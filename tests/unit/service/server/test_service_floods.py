"""Floods of idle calls: each kind has its own slots, and a peer gets only a share. So requests are still accepted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.client import AsyncOmniClient
from omni_proto.runtime.limits import Client
from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_stage.errors import TooManyRequestsError
from omni_stage.service.guard import side_calls
from omni_stage.service.guard.admission import CallQuota, CallSlot, count_start_slots, peer_address
from omni_stage.service.server.ports import health_options, main_options
from support.machine.raw_http2 import RawConnection, grpc_message
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab

GENERATE = "/omni_proto.stage.v1.StageService/Generate"
GET_STAGE = "/omni_proto.stage.v1.StageService/GetStage"
WATCH = "/grpc.health.v1.Health/Watch"
MIB = 1 << 20


@pytest.fixture
def connect() -> Iterator[Callable[..., RawConnection]]:
    """Yields a function that opens raw connections, which are closed after the test. It blocks: call it in a thread."""
    opened: list[RawConnection] = []

    def open_one(port: int, peer: str = "127.0.0.1", receive_window: int | None = None) -> RawConnection:
        opened.append(RawConnection(port, peer, receive_window))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


# The quota --------------------------------------


@pytest.mark.parametrize(
    ("peers", "became"),
    [
        ("a a b", "hhh"),
        ("a a a b", "hhrh"),
        ("a a b b c", "lhhhh"),
        ("a b b c d", "hlhhh"),
        ("am b bg bg d", "hhlhh"),
        ("g g1 g2 h h", "lhhhh"),
    ],
    ids=[
        *("room for all", "a peer's share", "the oldest call", "the oldest call of the peer with the most"),
        *("the oldest call of the peer's user with the most", "a peer that invents users"),
    ],
)
async def test_a_quota_evicts_the_oldest_call_of_the_largest_peer(peers: str, became: str) -> None:
    """peers: an address of one letter and perhaps a user for each call. became: h if it holds a slot, l if it lost its
    slot, r if it was refused."""
    quota = CallQuota("calls", 4, per_peer=3 if any(len(peer) > 1 for peer in peers.split()) else 2)
    ended: list[str] = []
    found: list[CallSlot | None] = []
    with ExitStack() as stack:
        for peer in peers.split():
            try:
                found.append(stack.enter_context(quota.hold(Client(peer[0], peer[1:]), partial(ended.append, peer))))
            except TooManyRequestsError:
                found.append(None)
        assert "".join("r" if slot is None else "l" if slot.evicted else "h" for slot in found) == became
        assert len(ended) == became.count("l")
    assert len(quota) == 0


def test_a_call_that_is_ending_already_gives_way() -> None:
    """The own timeout of the oldest call may have just expired. Its asyncio.Timeout can then not be rescheduled."""

    def end() -> None:
        raise RuntimeError("Cannot change state of expired Timeout")

    quota = CallQuota("calls", 1)
    with quota.hold(Client("a"), end) as old, quota.hold(Client("b"), lambda: None) as new:
        assert (old.evicted, new.evicted) == (True, False)


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:10.0.0.7:41234", "10.0.0.7"), ("ipv6:%5Bfd00::7%5D:41234", "%5Bfd00::7%5D"), ("unix:/a:b", "unix:/a:b")],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("requests", "budget", "slots"),
    [(64, 6 << 30, 64), (64, 256 * MIB, 16), (64, MIB, 8), (2, MIB, 2), (4096, 6 << 30, 384)],
)
def test_starts_in_flight_take_at_most_half_of_the_byte_budget(requests: int, budget: int, slots: int) -> None:
    assert count_start_slots(requests, budget, 8 * MIB) == slots


# A stage ------------------------------------


async def hoard(connection: RawConnection, method: str, count: int, message: bytes = b"", *, end: bool = False) -> None:
    """Begins `count` calls and leaves them open."""

    def begin() -> None:
        for _ in range(count):
            connection.send(connection.call(method), message, end=end)

    await asyncio.to_thread(begin)


async def test_health_watches_take_no_slot_of_a_request(kit: Any, connect: Callable[..., RawConnection]) -> None:
    """512 idle health watches once made a stage refuse all other calls."""
    stage = await kit.serve(limits={"maxConcurrentRequests": 2})
    for number in range(10):
        watcher = await asyncio.to_thread(connect, stage.server.ports.grpc, f"127.0.0.{number + 10}")
        await hoard(watcher, WATCH, 80, grpc_message(b""), end=True)
    answer = await lab.ask(stage)
    assert (answer.code, answer.text) == (grpc.StatusCode.OK, "Hello")
    health = health_pb2_grpc.HealthStub(stage.channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert (await anext(aiter(health.Watch(health_pb2.HealthCheckRequest())))).status
    assert (await stage.stub.GetStage(pb.GetStageRequest())).stage == "thinker"


async def test_health_answers_throughout_a_fivefold_overload(kit: Any) -> None:
    """While every slot is taken, further requests are refused immediately and both ports answer health checks."""
    slots, callers, rounds = 4, 20, 5
    stage = await kit.serve(lab.wait_forever, limits={"maxConcurrentRequests": slots})
    held = [stage.stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S) for _ in range(slots)]
    reading = [asyncio.create_task(lab.collect(call)) for call in held]
    await until(lambda: stage.server.admission.requests == slots)
    checks: list[int] = []

    async def ask_often() -> set[grpc.StatusCode]:
        return {(await lab.ask(stage)).code for _ in range(rounds)}

    async def check_often(channel: grpc.aio.Channel) -> None:
        health = health_pb2_grpc.HealthStub(channel)
        while not flood.done():
            checks.append((await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)).status)

    flood = asyncio.gather(*(ask_often() for _ in range(callers)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stage.server.ports.health}") as apart:
        await asyncio.gather(flood, check_often(stage.channel), check_often(apart))
    assert all(codes == {grpc.StatusCode.RESOURCE_EXHAUSTED} for codes in await flood)
    assert (set(checks), len(checks) >= 2) == ({health_pb2.HealthCheckResponse.SERVING}, True)
    assert stage.server.admission.requests == slots, "admitted requests are still served"
    for call in held:
        call.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*reading, return_exceptions=True)
    )


async def test_one_address_has_a_share_of_the_watches(kit: Any, connect: Callable[..., RawConnection]) -> None:
    stage = await kit.serve()
    for port, share in (
        (stage.server.ports.grpc, side_calls.MAIN_PER_PEER),
        (stage.server.ports.health, side_calls.HEALTH_PER_PEER),
    ):
        watcher = await asyncio.to_thread(connect, port)
        await hoard(watcher, WATCH, share + 7, grpc_message(b""), end=True)
        assert await asyncio.to_thread(watcher.read, lambda: len(watcher.ended) >= 7)  # noqa: B023
        assert len(watcher.ended) == 7


@pytest.mark.parametrize("bound", ["MAIN_PER_PEER", "MAIN_IN_ALL"])
async def test_more_clients_than_watches_are_all_served(kit: Any, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Each client watches health. gRPC sends no request on a connection whose watch was refused."""
    monkeypatch.setattr(f"omni_stage.service.server.ports.{bound}", 2)
    stage = await kit.serve()
    async with AsyncExitStack() as stack:
        target = f"127.0.0.1:{stage.server.ports.grpc}"
        clients = [await stack.enter_async_context(AsyncOmniClient(target)) for _ in range(5)]
        for client in (*clients, *clients):
            assert (await client.run(raw_text="hello", timeout=PATIENCE_S)).text == "Hello"


async def test_a_watcher_that_does_not_read_delays_nobody(kit: Any, connect: Callable[..., RawConnection]) -> None:
    """In grpcio's own servicer it would: that writes while it holds the lock that all other watchers need."""
    stage = await kit.serve()
    for port in (stage.server.ports.grpc, stage.server.ports.health):
        silent = await asyncio.to_thread(connect, port, receive_window=0)
        await hoard(silent, WATCH, 1, grpc_message(b""), end=True)
        seen: list[int] = []

        async def watch(port: int, seen: list[int]) -> None:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
                while len(seen) < 2:
                    seen.append((await watched.read()).status)
                watched.cancel()

        watching = asyncio.create_task(watch(port, seen))
        await until(lambda: len(seen) == 1)  # noqa: B023
        stage.server.health.set_ready(False)
        await watching
        assert seen == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
        stage.server.health.set_ready(True)


@pytest.mark.parametrize("method", [GET_STAGE, WATCH, "/grpc.health.v1.Health/Check"])
@pytest.mark.parametrize(
    ("message", "end"),
    [(b"", False), (grpc_message(b"", 100), False), (grpc_message(b""), False), (grpc_message(b"") * 2, True)],
    ids=["nothing", "half a message", "no end", "two messages"],
)
async def test_a_request_that_does_not_come_ends_its_call(
    kit: Any,
    connect: Callable[..., RawConnection],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    message: bytes,
    end: bool,
) -> None:
    """A call is ended if its request does not arrive within REQUEST_TIMEOUT_S."""
    monkeypatch.setattr(side_calls, "REQUEST_TIMEOUT_S", 0.1)
    stage = await kit.serve()
    peer = await asyncio.to_thread(connect, stage.server.ports.grpc)
    await hoard(peer, method, 1, message, end=end)
    assert await asyncio.to_thread(peer.read, lambda: peer.ended)


async def test_half_sent_starts_give_way_to_whole_ones(
    kit: Any, connect: Callable[..., RawConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all slots are taken, the peer with the most half-sent Starts loses one to each call that needs a slot."""
    monkeypatch.setattr("omni_stage.service.request.reading.START_GRACE_S", 0.01)
    stage = await kit.serve(limits={"maxConcurrentRequests": 3, "maxInflightBytes": MIB})
    peer, slow = [await asyncio.to_thread(connect, stage.server.ports.grpc, f"127.0.0.{number}") for number in (7, 8)]
    await hoard(peer, GENERATE, 5, grpc_message(b"x" * 1000, 8 * MIB))
    assert await asyncio.to_thread(peer.read, lambda: len(peer.ended) == 2)
    assert len(stage.server.runtime.starting) == 3
    await hoard(slow, GENERATE, 1, grpc_message(b"x" * 1000, 8 * MIB))
    assert await asyncio.to_thread(peer.read, lambda: len(peer.ended) == 3), (
        "the peer with the most half-sent Starts loses one"
    )
    assert not slow.ended
    answers = await asyncio.gather(*(lab.ask(stage) for _ in range(3)))
    assert [answer.text for answer in answers] == ["Hello"] * 3


async def test_a_client_that_accepts_no_bytes_holds_its_places_no_longer_than_timeouts_request(
    kit: Any, connect: Callable[..., RawConnection]
) -> None:
    """Not even Accepted can be written to this client, and its call has no deadline."""
    stage = await kit.serve(lab.wait_forever, timeouts={"request": 3.0})
    silent = await asyncio.to_thread(connect, stage.server.ports.grpc, receive_window=0)
    start = grpc_message(lab.start().SerializeToString()) + grpc_message(lab.END.SerializeToString())
    await hoard(silent, GENERATE, 3, start, end=True)
    await until(lambda: stage.server.admission.requests == 3)
    await until(lambda: stage.server.admission.requests == 0)


async def test_a_call_that_loses_its_place_gets_an_error(kit: Any, connect: Callable[..., RawConnection]) -> None:
    stage = await kit.serve(limits={"maxConcurrentRequests": 1})

    async def nothing() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    waiting = asyncio.create_task(lab.collect(stage.stub.Generate(nothing())))
    await until(lambda: len(stage.server.runtime.starting))
    peer = await asyncio.to_thread(connect, stage.server.ports.grpc)
    await hoard(peer, GENERATE, 1)
    answer = await waiting
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS")
    assert "calls without Start" in answer.message


async def test_a_connection_allows_more_streams_than_places(kit: Any) -> None:
    """A connection allows more streams than there are slots, so excess calls get an error."""
    stage = await kit.serve()
    config, starting = stage.server.config, stage.server.runtime.starting.in_all
    options = dict(main_options(config, starting))
    least = config.limits.max_concurrent_requests + starting + 2 * side_calls.MAIN_PER_PEER
    assert int(options["grpc.max_concurrent_streams"]) > least
    assert int(dict(health_options())["grpc.max_concurrent_streams"]) > 2 * side_calls.HEALTH_PER_PEER
