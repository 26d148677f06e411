"""Stream edges through real servers: when they open, and what travels while both stages work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch

from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.service.edges import downstream_call
from omni_stage.service.edges.downstream_call import EdgeCall
from omni_stage.service.wire import OutgoingChunk
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.streamed_pairs import Gates, step


async def test_rows_arrive_while_the_upstream_writes(start_pair: Callable[..., Any]) -> None:
    """The thinker continues only after the talker has read its rows. With a Full edge both would wait forever."""
    gates = Gates()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        # The call to the talker opens while this engine runs, so the talker's engine gets its request later.
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
    assert 0 < times.engine_submitted_ns < times.input_complete_ns, (
        "the talker's engine had the request before its input ended"
    )


async def test_rows_that_are_due_leave_within_the_engines_step(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due rows are sent by the code that handles the step. A separate task would run only after the steps of all other
    requests."""
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
            # A step without text does not wait for anything, so the event loop has had no turn since the yield.
            seen.append(len(begun))
            await until(lambda: len(written) > len(seen) - 1)
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert pair.rows == [0, 1, 2]
    # The first step is not checked: the script makes it so early that the call's sender may not have started yet.
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
    assert frozenset({"ids"}) in known, "ids is complete before the edge ends and before x is complete"
    assert torch.equal(torch.cat([r.tensors["x"] for r in pair.reads if "x" in r.tensors]), lab.rows(4))


async def test_the_engine_works_while_the_stage_below_accepts(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call to the talker opens only after the thinker's engine has begun, so the engine must not wait for it."""
    began, opened = asyncio.Event(), EdgeCall.open

    async def open_late(call: EdgeCall, max_rows: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
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
    assert answer.kinds[0] == ("thinker", "accepted"), "Accepted is the first message"
    assert len(pair.rows) == 3


async def test_streamed_requests_beyond_the_talkers_limit_are_refused_before_they_begin(
    start_pair: Callable[..., Any],
) -> None:
    proceed = asyncio.Event()

    async def think(request: StageRequest) -> AsyncIterator[StageStep]:
        yield step(0, 3, prompt_token_ids=[1])
        await proceed.wait()
        yield StageStep(finish_reason=FinishReason.STOP)

    pair = await start_pair(think)
    pair.talker.server.admission.max_requests = 1
    first = asyncio.create_task(lab.ask(pair.thinker))
    await until(lambda: pair.talker.server.admission.requests == 1)
    second = await lab.ask(pair.thinker)
    assert second.responses == [], "the client may try again"
    assert (second.code.name, second.info.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_REQUESTS")
    text = asyncio.create_task(lab.ask(pair.thinker, [lab.start(allow_partial=True, modalities=[1]), lab.END]))
    await until(lambda: pair.thinker.server.admission.requests == 2)
    assert pair.talker.server.health.ready
    proceed.set()
    assert (await text).of("accepted"), "text alone needs no talker"
    assert (await first).code.name == "OK"
    assert pair.talker.server.admission.requests == 0
    assert (await lab.ask(pair.thinker)).code.name == "OK"
