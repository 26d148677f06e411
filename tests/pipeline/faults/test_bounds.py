"""A stage server's memory stays bounded whatever its peers do.

The tests use 200 clients that stop reading, 200 that stop sending, a stage that hangs, and 10,000 idle connections.
Stage servers run in their own processes, and only their engines are fakes.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

import grpc
import pytest
from google.rpc import error_details_pb2

from omni_proto.client import AsyncOmniClient
from omni_proto.rpc.options import channel_options
from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2 as pb
from omni_proto.tensors import EncodedChunk, encode_rows, schema_hash, tensor_prompt
from omni_stage.service.guard.admission import MIN_START_SLOTS
from support.processes.polling import PATIENCE_S, until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports
from support.stages.cheap_stages import EDGE_A, ROW, WORD
from support.stages.scripted_stages import END, Answer, collect

pytestmark = pytest.mark.pipeline

MIB = 1 << 20
CALLS = 200
BUDGET = 64 * MIB
PER_CALL = 256 << 10
"""Bytes that a call may use in addition to those that admission counts: Python objects and gRPC's buffers."""
IDLE = {"grpc": 10_000, "health": 2_000, "metrics": 2_000}
"""Unused connections that a test opens to a port."""
LIMITS = {"maxConcurrentRequests": 512, "maxInflightBytes": BUDGET}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StageProcess, StageProcess]]:
    """The thinker in one process, and talker and token2wav in another."""
    configs = chain_configs(pick_chain_ports(), limits=LIMITS, timeouts={"request": 30})
    folder = tmp_path_factory.mktemp("bounds")
    with (
        StageProcess([configs["talker"], configs["token2wav"]], folder, CHEAP) as below,
        StageProcess([configs["thinker"]], folder, CHEAP) as entry,
    ):
        entry.start(wait=False)
        below.start()
        entry.wait_ready()
        yield entry, below


@asynccontextmanager
async def calls_to(process: StageProcess, stage: str) -> AsyncIterator[Callable[..., Any]]:
    """Yields the Generate method as a bare gRPC callable, because our client would keep reading.

    The flow control window is small, so responses that the caller does not read stay in the stage's memory.
    """
    options = [*channel_options(), ("grpc.http2.lookahead_bytes", 64 << 10)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{process.ports[stage]['grpc']}", options=options) as channel:
        yield channel.stream_stream(
            "/omni_proto.stage.v1.StageService/Generate",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=pb.GenerateResponse.FromString,
        )


async def open_calls(call: Callable[[], Any], count: int = CALLS) -> list[Any]:
    """Opens `count` calls, reads Accepted from each, and returns the calls.

    It opens MIN_START_SLOTS at a time. If more calls wait for their Start message, a stage may refuse some and ask
    for a retry. Our client would retry; these bare calls do not.
    """
    calls: list[Any] = []
    while len(calls) < count:
        new = [call() for _ in range(MIN_START_SLOTS)]
        answers = await asyncio.gather(*(one.read() for one in new))
        assert {answer.WhichOneof("message") for answer in answers} == {"accepted"}
        calls += new
    return calls


async def serve_some(process: StageProcess, count: int = 50) -> None:
    """Sends requests that succeed, so that a process has allocated its usual memory before a test measures growth."""
    async with AsyncOmniClient(f"127.0.0.1:{process.ports['thinker']['grpc']}") as client:
        for _ in range(count):
            assert (await client.run(raw_text="hello", timeout=PATIENCE_S)).text == WORD * 4


class Watch:
    """Samples a process's memory and readiness every 50 ms while the `async with` block runs."""

    def __init__(self, process: StageProcess) -> None:
        self._process = process
        self._stage = next(iter(process.ports))
        self.before = self.peak = process.rss_bytes()
        self.answers: set[str] = set()

    @property
    def growth(self) -> int:
        return self.peak - self.before

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.peak = max(self.peak, self._process.rss_bytes())

    async def _look(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.rss_bytes())
            self.answers.add(await asyncio.to_thread(self._process.health, self._stage, "readiness"))
            await asyncio.sleep(0.05)


async def wait_until_idle(process: StageProcess) -> None:
    """Returns once every stage of the process reports 0 requests, 0 bytes and 0 unfinished engine requests."""
    names = ("omni_stage_inflight_requests", "omni_stage_inflight_bytes", "cheap_unfinished")

    def left() -> list[tuple[str, str]]:
        return [(stage, name) for stage in process.ports for name in names if process.metric(stage, name) != 0]

    await until(lambda: not left(), why=left)


def sampling(**stages: dict[str, int]) -> dict[str, sampling_pb2.SamplingParams]:
    return {name: sampling_pb2.SamplingParams(**fields) for name, fields in stages.items()}


async def test_callers_that_stop_reading(pair: tuple[StageProcess, StageProcess]) -> None:
    entry, _ = pair
    await serve_some(entry)
    start = pb.GenerateRequest(
        start=pb.Start(
            text="x", modalities=[sampling_pb2.MODALITY_TEXT], sampling=sampling(thinker={"max_tokens": 4000})
        )
    )
    async with calls_to(entry, "thinker") as generate, Watch(entry) as watch:
        # Without backpressure each call would buffer 4 MiB of text, 800 MiB in all.
        calls = await open_calls(lambda: generate(iter([start, END]), timeout=6))
        codes = await asyncio.gather(*(call.code() for call in calls))
    assert Counter(code.name for code in codes) == {"DEADLINE_EXCEEDED": CALLS}
    assert watch.growth < CALLS * PER_CALL
    assert watch.answers == {"SERVING"}
    await wait_until_idle(entry)
    await serve_some(entry, 1)


def half_an_edge(rows_announced: int, rows_sent: int) -> list[pb.GenerateRequest | EncodedChunk]:
    prompt = tensor_prompt(EDGE_A, "thinker", [("x", rows_announced), ("ids", rows_announced)])
    begin = pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(EDGE_A)))
    return [begin, *encode_rows(EDGE_A.spec("x"), bytes(rows_sent * ROW * 2), last=False)]


async def never_ending(messages: list[Any]) -> AsyncIterator[Any]:
    for message in messages:
        yield message
    await asyncio.Event().wait()


async def test_callers_that_stop_sending(pair: tuple[StageProcess, StageProcess]) -> None:
    entry, below = pair
    await serve_some(entry)
    messages = half_an_edge(rows_announced=40, rows_sent=20)
    async with calls_to(below, "talker") as generate, Watch(below) as watch:
        calls = await open_calls(lambda: generate(never_ending(messages), timeout=5))
        answers = await asyncio.gather(*(call.code() for call in calls))
    assert Counter(code.name for code in answers) == {"DEADLINE_EXCEEDED": CALLS}
    assert watch.growth < BUDGET + CALLS * PER_CALL
    await wait_until_idle(below)
    await serve_some(entry, 1)


async def test_callers_that_announce_much_are_refused_before_they_send(pair: tuple[StageProcess, StageProcess]) -> None:
    _, below = pair
    messages = half_an_edge(rows_announced=4000, rows_sent=1)
    async with calls_to(below, "talker") as generate, Watch(below) as watch:
        # Two calls fill the budget and then send nothing more.
        holders = [generate(never_ending(messages), timeout=120) for _ in range(2)]
        for holder in holders:
            assert (await holder.read()).WhichOneof("message") == "accepted"
        refused: list[Answer] = []
        for _ in range(0, CALLS, MIN_START_SLOTS):
            calls = [generate(never_ending(messages), timeout=PATIENCE_S) for _ in range(MIN_START_SLOTS)]
            refused += await asyncio.gather(*(collect(call) for call in calls))
        assert not any(holder.done() for holder in holders)
        for holder in holders:
            holder.cancel()
    assert {(answer.code, answer.info.reason) for answer in refused} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "BYTE_BUDGET_EXCEEDED")
    }
    assert watch.growth < CALLS * PER_CALL
    await wait_until_idle(below)


async def test_a_stage_that_stops(pair: tuple[StageProcess, StageProcess]) -> None:
    entry, below = pair
    await serve_some(entry)
    start = pb.GenerateRequest(start=pb.Start(text="x", sampling=sampling(thinker={"max_tokens": 100})))
    ended: list[Answer] = []

    async def one(generate: Callable[..., Any], sent: asyncio.Event) -> None:
        async def messages() -> AsyncIterator[pb.GenerateRequest]:
            yield start
            sent.set()
            yield END

        # The deadline is long enough for a busy machine to answer all refusals before the first waiting call ends.
        ended.append(await collect(generate(messages(), timeout=30)))
        sent.set()

    below.send(signal.SIGSTOP)
    try:
        async with calls_to(entry, "thinker") as generate, Watch(entry) as watch:
            calls: list[asyncio.Task[None]] = []
            while len(calls) < CALLS:
                # A few at a time, for the reason given in open_calls.
                sent = [asyncio.Event() for _ in range(MIN_START_SLOTS)]
                calls += [asyncio.create_task(one(generate, event)) for event in sent]
                await asyncio.gather(*(event.wait() for event in sent))
            await asyncio.gather(*calls)
    finally:
        below.send(signal.SIGCONT)
    refused = [answer for answer in ended if answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED]
    waited = [answer for answer in ended if answer.code is grpc.StatusCode.DEADLINE_EXCEEDED]
    assert len(refused) + len(waited) == CALLS
    assert min(len(refused), len(waited)) > 20
    # Refusals are immediate and say when to retry: all arrive before the first waiting call reaches its deadline.
    assert ended[: len(refused)] == refused
    assert {answer.info.reason for answer in refused} == {"BYTE_BUDGET_EXCEEDED"}
    assert all(answer.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1 for answer in refused)
    assert watch.answers == {"SERVING"}, "overload is no reason to be taken out of service"
    assert watch.growth < BUDGET + CALLS * PER_CALL
    await wait_until_idle(entry)
    await wait_until_idle(below)
    await serve_some(entry, 1)


@pytest.mark.parametrize("port", IDLE)
async def test_idle_connections_harm_nobody(pair: tuple[StageProcess, StageProcess], port: str) -> None:
    entry, _ = pair
    await serve_some(entry, 5)
    entry.metrics("thinker")
    loop, hoard = asyncio.get_running_loop(), []
    async with Watch(entry) as watch:
        try:
            for number in range(IDLE[port]):
                one = socket.socket()
                one.setblocking(False)
                one.bind((f"127.0.1.{number % 200 + 1}", 0))
                await loop.sock_connect(one, ("127.0.0.1", entry.ports["thinker"][port]))
                hoard.append(one)
            await serve_some(entry, 5)
            assert entry.metric("thinker", "omni_stage_ready") == 1
        finally:
            for one in hoard:
                one.close()
    assert watch.answers == {"SERVING"}
    assert watch.growth < IDLE[port] * (32 << 10), "bytes a connection"
    assert entry.threads() < 64
