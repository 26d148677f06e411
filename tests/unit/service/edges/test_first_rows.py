"""The first rows of a Stream edge leave as soon as the downstream stage accepts, because speech waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from omni_proto.stage_config import EdgeMode
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.service.edges import downstream_call
from omni_stage.service.edges.downstream_call import EdgeCall
from omni_stage.service.edges.outbox import EARLY_STEPS
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.wire import OutgoingChunk
from support.processes.polling import PATIENCE_S, until
from support.stages import scripted_stages as lab
from support.stages.streamed_pairs import Gates, step


async def three_rows(_: StageRequest) -> AsyncIterator[StageStep]:
    yield step(0, 3, prompt_token_ids=[1])
    yield StageStep(finish_reason=FinishReason.STOP)


async def test_rows_do_not_wait_for_the_accepted_of_their_own_stage(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates()
    has_rows, accept = gates.has(3), ResponseWriter.accept

    async def accept_late(writer: ResponseWriter, accepted: Any) -> None:
        if writer._stage == "thinker":
            async with asyncio.timeout(PATIENCE_S):
                await has_rows.wait()
        await accept(writer, accepted)

    monkeypatch.setattr(ResponseWriter, "accept", accept_late)
    pair = await start_pair(three_rows, gates=gates)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert answer.kinds[:2] == [("thinker", "accepted"), ("talker", "accepted")]
    assert answer.text == "0 "
    assert pair.rows == [0, 1, 2]


async def test_rows_leave_in_the_turn_of_the_loop_in_which_the_talker_accepts(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[OutgoingChunk] = []
    write, opened = downstream_call._write, EdgeCall.open
    at_return: list[int] = []

    async def note(call: Any, message: Any) -> bool:
        if isinstance(message, OutgoingChunk):
            begun.append(message)
        return await write(call, message)

    async def open_late(call: EdgeCall, max_rows: int) -> None:
        await until(lambda: call._outbox.is_due)
        await opened(call, max_rows)
        at_return.append(len(begun))

    monkeypatch.setattr(downstream_call, "_write", note)
    monkeypatch.setattr(EdgeCall, "open", open_late)
    pair = await start_pair(three_rows)
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert pair.rows == [0, 1, 2]
    assert at_return == [1]


@pytest.mark.parametrize(("needed", "early"), [(None, EARLY_STEPS), (1, EARLY_STEPS), (24, 24)])
async def test_a_component_knows_which_rows_the_first_audio_needs(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, needed: int | None, early: int
) -> None:
    """The rows that the first audio needs never wait for later rows, however many steps they take."""
    opened, counts = EdgeCall.open, []

    async def note(call: EdgeCall, max_rows: int) -> None:
        counts.append(call._outbox._pacing.early_steps)
        await opened(call, max_rows)

    monkeypatch.setattr(EdgeCall, "open", note)
    pair = await start_pair(three_rows)
    if needed is not None:
        pair.thinker.server.runtime.engine.component.first_audio_steps = needed
    answer = await lab.ask(pair.thinker)
    assert answer.code.name == "OK", answer.message
    assert counts == [early]


@pytest.mark.parametrize("partial", [False, True])
async def test_a_second_talker_that_refuses_after_the_first_has_rows(
    kit: Any, start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, partial: bool
) -> None:
    """The request fails before Accepted, and the first talker's call ends. With allow_partial, only the second talker
    fails."""
    gates = Gates()
    has_rows, opened = gates.has(3), EdgeCall.open

    async def open_late(call: EdgeCall, max_rows: int) -> None:
        if call.edge.stage == "narrator":
            async with asyncio.timeout(PATIENCE_S):
                await has_rows.wait()
        await opened(call, max_rows)

    monkeypatch.setattr(EdgeCall, "open", open_late)
    pair = await start_pair(three_rows, gates=gates)
    narrator = await kit.serve(
        lab.wait_forever,
        stage="narrator",
        outputs=["Audio"],
        input={"source": "thinker", "mode": "Stream"},
        component=lab.ScriptedComponent(input_schema=lab.EDGE_A),
    )
    narrator.server.admission.max_requests = 0
    stages = (("talker", pair.talker), ("narrator", narrator))
    edges = [
        kit.edge(name, stage.target, [name]).model_copy(update={"mode": EdgeMode.STREAM}) for name, stage in stages
    ]
    component = lab.ScriptedComponent(output_schema=lab.EDGE_A)
    thinker = await kit.serve(three_rows, downstream=edges, component=component)
    answer = await lab.ask(thinker, [lab.start(allow_partial=partial), lab.END])
    if partial:
        assert answer.code.name == "OK", answer.message
        assert sorted(answer.kinds[1:3]) == [("narrator", "failed"), ("talker", "accepted")]
        assert len(answer.of("finished", "talker")) == 1
    else:
        assert (answer.code.name, answer.info.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_REQUESTS")
        assert answer.responses == [], "the client may try again"
    for stage in (thinker, pair.talker):
        await until(lambda stage=stage: not stage.server.admission.requests)
        assert stage.server.admission.bytes == 0


async def test_a_client_that_leaves_while_the_first_rows_are_being_written(
    start_pair: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writing = downstream_call._write, asyncio.Event()
    ended: list[str] = []

    async def stuck(call: Any, message: Any) -> bool:
        if not isinstance(message, OutgoingChunk):
            return await write(call, message)
        writing.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("write")
        return True

    monkeypatch.setattr(downstream_call, "_write", stuck)
    pair = await start_pair(three_rows)
    call = pair.thinker.stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await writing.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lab.collect(call)
    await until(lambda: not pair.thinker.server.admission.requests)
    await until(lambda: not pair.talker.server.admission.requests)
    assert ended == ["write"]
    assert pair.rows == []
