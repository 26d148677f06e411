"""Stream edges through real servers: when they open, what travels while both stages work, and every way they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import torch

from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.stage_config import EdgeMode
from omni_proto.tensors import crc32c, encode_tensor_chunk, schema_hash, tensor_prompt
from omni_stage import errors
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.models.edge_stream import EdgeRows, EdgeStream
from omni_stage.service.edges import downstream_call
from omni_stage.service.edges.downstream_call import EdgeCall
from omni_stage.service.wire import OutgoingChunk
from support import scripted_stages as lab
from support.polling import until


@dataclass
class Pair:
    """A thinker that streams to a talker; what each of them saw."""

    thinker: Any
    talker: Any
    reads: list[EdgeRows] = field(default_factory=list)

    @property
    def rows(self) -> list[int]:
        """The ids that the talker read, one for each row."""
        return [i for read in self.reads if "ids" in read.tensors for i in read.tensors["ids"].tolist()]


@dataclass
class Gates:
    """What the scripts wait for: nothing here depends on time."""

    talker_has: dict[int, asyncio.Event] = field(default_factory=dict)
    talker_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def has(self, rows: int) -> asyncio.Event:
        return self.talker_has.setdefault(rows, asyncio.Event())


def step(begin: int, end: int, **more: Any) -> StageStep:
    """Returns rows [begin, end) and a word."""
    tensors = {"x": lab.rows(end - begin, begin), "ids": torch.arange(begin, end)}
    return StageStep(text=f"{begin} ", token_ids=[begin], tensors=tensors, **more)


@pytest.fixture
def start_pair(kit: Any) -> Callable[..., Any]:
    async def start(think: Any, *, take: int | None = None, fail: Exception | None = None, **talker: Any) -> Pair:
        """Returns a talker that reads `take` rows, all if None, and then speaks, or fails."""
        pair = Pair(None, None)
        gates = talker.pop("gates", Gates())

        async def talk(request: StageRequest) -> AsyncIterator[StageStep]:
            assert isinstance(request.source, EdgeStream)
            read = EdgeRows()
            while not read.ended and (take is None or len(pair.rows) < take):
                read = await request.source.read()
                pair.reads.append(read)
                for count, event in gates.talker_has.items():
                    if len(pair.rows) >= count:
                        event.set()
            if fail is not None:
                raise fail
            yield StageStep(audio=torch.zeros(10), finish_reason=FinishReason.STOP)

        talker_settings = {
            "stage": "talker",
            "outputs": ["Audio"],
            "input": {"source": "thinker", "mode": "Stream"},
            "component": lab.ScriptedComponent(input_schema=lab.EDGE_A),
            **talker,
        }
        pair.talker = await kit.serve(talk, **talker_settings)
        edge = kit.edge("talker", pair.talker.target, ["talker"]).model_copy(update={"mode": EdgeMode.STREAM})
        component = lab.ScriptedComponent(output_schema=lab.EDGE_A)
        pair.thinker = await kit.serve(think, downstream=[edge], component=component)
        return pair

    return start


async def test_rows_arrive_while_the_upstream_writes(start_pair: Callable[..., Any]) -> None:
    """The thinker writes on only once the talker has read: were the edge Full, both would wait for ever."""
    gates = Gates()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        # The talker accepted before this engine was asked; its own engine is asked a moment later.
        await until(lambda: pair.talker.engine.requests)
        for begin, end in ((0, 3), (3, 4), (4, 6)):
            yield step(begin, end, prompt_token_ids=[1] if begin == 0 else None)
            if end < 6:
                await gates.has(end).wait()
        yield StageStep(finish_reason=FinishReason.STOP)

    for rows in (3, 4):
        gates.has(rows)
    pair = await start_pair(think, gates=gates)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert pair.rows == list(range(6))
    assert torch.equal(torch.cat([r.tensors["x"] for r in pair.reads if "x" in r.tensors]), lab.rows(6))
    assert pair.reads[-1].ended
    assert answer.kinds[:2] == [("thinker", "accepted"), ("talker", "accepted")]
    assert answer.kinds[-1] == ("thinker", "summary")
    times = answer.of("finished", "talker")[0].timings
    assert 0 < times.engine_submitted_ns < times.input_complete_ns, "its engine had the request before its input ended"


async def test_rows_that_are_due_leave_within_the_engines_step(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a task of their own, which would run after the steps of all other requests of the batch."""
    begun: list[OutgoingChunk] = []
    written: list[OutgoingChunk] = []
    write = downstream_call._write

    async def note(call: Any, message: Any) -> bool:
        rows = [message] if isinstance(message, OutgoingChunk) else []
        begun.extend(rows)
        took = await write(call, message)
        written.extend(rows)
        return took

    monkeypatch.setattr(downstream_call, "_write", note)
    seen: list[int] = []

    async def think(_: StageRequest) -> AsyncIterator[StageStep]:
        for number in range(3):
            tensors = {"x": lab.rows(1, number), "ids": torch.tensor([number])}
            yield StageStep(token_ids=[number], prompt_token_ids=[1] if not number else None, tensors=tensors)
            # A step without text waits for nothing: no turn of the event loop has passed.
            seen.append(len(begun))
            await until(lambda: len(written) > len(seen) - 1)
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert pair.rows == [0, 1, 2]
    # The sender of this call may start after the first step, which this script makes at once.
    assert seen[1:] == [2, 3]


async def test_tensors_end_one_by_one(start_pair: Callable[..., Any]) -> None:
    gates = Gates()
    gates.has(2)

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield StageStep(
            tensors={"x": lab.rows(1), "ids": torch.arange(2)},
            complete_tensors=frozenset({"ids"}),
            prompt_token_ids=[1],
        )
        await gates.has(2).wait()
        yield StageStep(tensors={"x": lab.rows(3, 1)}, complete_tensors=frozenset({"ids"}))
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think, gates=gates)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    known = [read.complete for read in pair.reads if not read.ended]
    assert frozenset({"ids"}) in known, "before the end, and before the other tensor's"
    assert torch.equal(torch.cat([r.tensors["x"] for r in pair.reads if "x" in r.tensors]), lab.rows(4))


async def test_a_talker_that_needs_no_more_ends_and_the_thinker_goes_on(start_pair: Callable[..., Any]) -> None:
    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await pair.talker.engine.ended.wait()
        for row in range(3, 9):
            yield step(row, row + 1)
            await asyncio.sleep(0)
        yield StageStep(finish_reason=FinishReason.LENGTH)

    pair = await start_pair(think, take=3)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert answer.text == "0 3 4 5 6 7 8 "
    assert [o.code for o in answer.of("summary")[0].stages] == [0, 0]
    assert pair.talker.server.admission.requests == pair.talker.server.admission.bytes == 0


@pytest.mark.parametrize("partial", [False, True])
async def test_an_upstream_that_fails_ends_the_talker(start_pair: Callable[..., Any], partial: bool) -> None:
    gates = Gates()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await gates.has(3).wait()
        raise errors.ModelExecutionError("lost")

    gates.has(3)
    pair = await start_pair(think, gates=gates)
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=partial), lab.END])
    assert answer.text == "0 "
    if partial:
        assert answer.code.name == "OK"
        assert [f.status.message for f in answer.of("failed", "thinker")] == ["lost"]
    else:
        assert (answer.code.name, answer.info.metadata["stage"]) == ("INTERNAL", "thinker")
    await asyncio.wait_for(pair.talker.engine.ended.wait(), 30)
    assert len(pair.talker.engine.aborted) == 1
    await until(lambda: not pair.talker.server.admission.requests, 60)


@pytest.mark.parametrize("partial", [False, True])
async def test_a_talker_that_fails_in_the_middle(start_pair: Callable[..., Any], partial: bool) -> None:
    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await pair.talker.engine.ended.wait()
        await asyncio.sleep(0.05 if partial else 30)
        yield step(3, 4)
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think, take=3, fail=errors.ModelExecutionError("no voice"))
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=partial), lab.END])
    if partial:
        assert answer.code.name == "OK"
        assert answer.text == "0 3 "
        assert [f.status.message for f in answer.of("failed", "talker")] == ["no voice"]
    else:
        assert (answer.code.name, answer.info.metadata["stage"]) == ("INTERNAL", "talker")
        assert len(pair.thinker.engine.aborted) == 1


async def test_what_the_talker_refuses_is_known_before_accepted(start_pair: Callable[..., Any]) -> None:
    pair = await start_pair(lab.say_hello)
    params = pb.Start(text="x")
    params.sampling["talker"].min_tokens = 2
    for _ in range(3):
        answer = await lab.ask(pair.thinker, [pb.GenerateRequest(start=params), lab.END])
        assert answer.responses == []
        assert (answer.code.name, answer.info.metadata["field"]) == (
            "INVALID_ARGUMENT",
            "start.sampling[talker].min_tokens",
        )
    began, aborted = pair.thinker.engine.requests, pair.thinker.engine.aborted
    assert len(began) == len(aborted) <= 1, "after a refusal the engine waits for the next answer"


async def test_the_engine_works_while_the_stage_below_accepts(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The talker is asked only once the thinker's engine runs: were one to wait for the other, nothing would come."""
    began, opened = asyncio.Event(), EdgeCall.open

    async def open_late(call: EdgeCall, max_rows: int) -> None:
        async with asyncio.timeout(20):
            await began.wait()
        await opened(call, max_rows)

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        began.set()
        yield step(0, 3, prompt_token_ids=[1])
        yield StageStep(finish_reason=FinishReason.STOP)

    monkeypatch.setattr(EdgeCall, "open", open_late)
    pair = await start_pair(think)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK"
    assert answer.text == "0 "
    assert answer.kinds[0] == ("thinker", "accepted"), "nothing comes before it"
    assert len(pair.rows) == 3


async def test_streamed_requests_beyond_the_talkers_limit_are_refused_before_they_begin(
    start_pair: Callable[..., Any],
) -> None:
    go_on = asyncio.Event()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await go_on.wait()
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think)
    pair.talker.server.admission.max_requests = 1
    first = asyncio.create_task(lab.ask(pair.thinker))
    await until(lambda: pair.talker.server.admission.requests == 1, 60)
    second = await lab.ask(pair.thinker)
    assert second.responses == [], "the client may try again"
    assert (second.code.name, second.info.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_REQUESTS")
    assert (await lab.ask(pair.thinker, [lab.start(allow_partial=True, modalities=[1]), lab.END], timeout_s=0.5)).of(
        "accepted"
    ), "text alone needs no talker"
    assert pair.talker.server.health.ready
    go_on.set()
    assert (await first).code.name == "OK"
    assert pair.talker.server.admission.requests == 0
    assert (await lab.ask(pair.thinker)).code.name == "OK"


async def test_with_allow_partial_a_talker_that_cannot_be_had_is_left_out(start_pair: Callable[..., Any]) -> None:
    pair = await start_pair(lab.say_hello)
    pair.talker.server.admission.max_requests = 0
    answer = await lab.ask(pair.thinker, [lab.start(allow_partial=True), lab.END])
    assert answer.code.name == "OK"
    assert answer.text == "Hello"
    assert answer.kinds[:2] == [("thinker", "accepted"), ("talker", "failed")]


def chunk(name: str, offset: int, rows: int, **changes: Any) -> bytes:
    data = (lab.rows(rows, offset) if name == "x" else torch.arange(offset, offset + rows)).contiguous()
    raw = data.view(torch.uint8).numpy().tobytes()
    return encode_tensor_chunk(
        name, changes.get("at", offset), rows, changes.get("crc", crc32c(raw)), changes.get("last", False), raw
    )


BROKEN: dict[str, tuple[Callable[[], list[Any]], str, str]] = {
    "damaged": (lambda: [chunk("x", 2, 1, crc=1)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "a gap": (lambda: [chunk("x", 2, 1, at=5)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "again": (lambda: [chunk("x", 0, 2)], "DATA_LOSS", "CORRUPT_TENSOR"),
    "too many": (lambda: [chunk("x", 2, 60)], "INVALID_ARGUMENT", "INVALID_TENSOR"),
    "end without last": (lambda: [lab.END], "DATA_LOSS", "CORRUPT_TENSOR"),
    "no end": (list, "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
    "Start again": (lambda: [lab.start()], "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_breaks_in_the_middle_ends_the_engines_request(start_pair: Callable[..., Any], case: str) -> None:
    broken, code, reason = BROKEN[case]
    pair = await start_pair(lab.say_hello)
    answer = await lab.collect(call_talker(pair, [chunk("x", 0, 2), *broken()]))
    assert (answer.code.name, answer.info.reason) == (code, reason)
    assert [kind for _, kind in answer.kinds] == ["accepted"]
    await until(lambda: len(pair.talker.engine.aborted) == len(pair.talker.engine.requests), 60)
    assert pair.talker.server.admission.requests == pair.talker.server.admission.bytes == 0


@pytest.mark.parametrize("way", ["deadline", "cancel"])
async def test_an_upstream_that_falls_silent(start_pair: Callable[..., Any], way: str) -> None:
    pair = await start_pair(lab.say_hello)
    silent = asyncio.Event()

    async def messages() -> AsyncIterator[Any]:
        yield talker_start()
        yield chunk("x", 0, 2)
        await silent.wait()

    call = call_talker(pair, messages(), timeout_s=0.8 if way == "deadline" else 30)
    if way == "cancel":
        await until(lambda: bool(pair.reads), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lab.collect(call)
    else:
        answer = await lab.collect(call)
        assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(pair.talker.engine.aborted) == 1, 60)
    await until(lambda: not pair.talker.server.admission.requests, 60)


def talker_start() -> pb.GenerateRequest:
    prompt = tensor_prompt(lab.EDGE_A, "thinker", [("x", 16), ("ids", 16)])
    return pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(lab.EDGE_A)))


def call_talker(pair: Pair, messages: Any, timeout_s: float = 20) -> Any:
    """Returns a call to the talker by hand; a list of messages comes after Start."""
    channel = grpc.aio.insecure_channel(pair.talker.target)
    generate = channel.stream_stream(
        "/omni_proto.stage.v1.StageService/Generate",
        request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
        response_deserializer=pb.GenerateResponse.FromString,
    )
    if isinstance(messages, list):
        messages = iter([talker_start(), *messages])
    return generate(messages, timeout=timeout_s)
