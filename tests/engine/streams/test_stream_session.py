"""The talker on a real engine, fed row by row, gives the same output as with all rows in one request."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from omni_stage.errors import InvalidRequestError, InvalidTensorError, PromptTooLongError
from omni_stage.models.component import EdgeStream, FinishReason, StageRequest
from support.engines.async_on_cpu import SCHEDULING, stage_scheduling
from support.engines.omni_stages import Collected, OmniStages, run_omni_stages
from support.engines.streams import (
    HEAD,
    collect,
    feed_slowly,
    put_cut,
    run_live,
    stage_request,
    table_sizes,
    until_empty,
)
from support.models.reference import PLAIN_SYSTEM_PROMPT, ReferencePrompt
from support.processes.polling import PATIENCE_S, until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
ENDING = ReferencePrompt("Good morning", system=PLAIN_SYSTEM_PROMPT).to_user_prompt()
"""With this checkpoint both the thinker's reply and the talker's codes to this prompt end with their end token."""
THINKER = {**GREEDY, "max_tokens": 48}
TALKERS: dict[str, dict[str, Any]] = {
    "greedy, to its own end": {**GREEDY, "max_tokens": 64},
    "greedy, to max_tokens": {**GREEDY, "max_tokens": 9},
    "one token": {**GREEDY, "max_tokens": 1},
    "seeded": {"temperature": 1.3, "seed": 7, "max_tokens": 48},
    "seeded, without an end": {"temperature": 0.9, "seed": 2**40, "max_tokens": 48, "ignore_eos": True},
    "repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.3, "max_tokens": 48, "ignore_eos": True},
    "to the longest sequence": {**GREEDY, "max_tokens": 100_000, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    """The tiny checkpoint of shape "gqa" and seed 0."""
    return make_tiny_checkpoint(0, "gqa")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["asynchronous"])
async def stages(checkpoint: Path, request: pytest.FixtureRequest) -> AsyncIterator[OmniStages]:
    """Thinker and talker. max_model_len is so short that a test reaches it."""
    with stage_scheduling(request.param):
        async with run_omni_stages(checkpoint, "thinker", "talker", max_model_len=192) as running:
            yield running


both_ways = pytest.mark.parametrize("stages", SCHEDULING, indirect=True)
"""Runs a test with synchronous scheduling (as on a CPU) and asynchronous scheduling (as on a GPU).

The other tests concern code in front of the engine, so one kind suffices.
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thought(stages: OmniStages) -> Collected:
    """The thinker's reply to ENDING."""
    collected = await stages.ask("thinker", ENDING, **THINKER)
    assert collected.finish_reason is FinishReason.STOP
    return collected


def talk(stages: OmniStages, stream: EdgeStream, **sampling: Any) -> asyncio.Task[Collected]:
    talker = stages.engines["talker"]
    return asyncio.create_task(collect(talker, stage_request(talker, stream, **sampling)))


def same(first: Collected, second: Collected) -> None:
    assert first.token_ids == second.token_ids
    assert first.finish_reason is second.finish_reason
    assert first.prompt_token_ids == second.prompt_token_ids
    assert torch.equal(first.tensors.get("codes", torch.empty(0)), second.tensors.get("codes", torch.empty(0)))


@both_ways
@pytest.mark.parametrize("case", TALKERS)
async def test_streamed_equals_full(stages: OmniStages, thought: Collected, case: str) -> None:
    sampling = TALKERS[case]
    full = await stages.ask("talker", thought.tensors, **sampling)
    for sizes in ([1], [100]):
        stream = EdgeStream()
        task = talk(stages, stream, **sampling)
        await feed_slowly(stream, thought.tensors, sizes)
        same(await task, full)
    stream = EdgeStream()
    put_cut(stream, thought.tensors, [1, 5])
    same(await talk(stages, stream, **sampling), full)
    assert await until_empty(stages.engines["talker"]) == {}


@both_ways
async def test_the_talkers_own_end_drops_rows_that_still_come(stages: OmniStages, thought: Collected) -> None:
    """A stop token does not end a session in vLLM. Rows that arrive after it must still not resume the session."""
    full = await stages.ask("talker", thought.tensors, **GREEDY, max_tokens=64)
    assert full.finish_reason is FinishReason.STOP
    # The talker stops at its second token, long before the thinker's rows end.
    sampling = {**GREEDY, "max_tokens": 64, "stop_token_ids": [full.token_ids[1]]}
    stream, rows = EdgeStream(), thought.tensors["x"]
    task = talk(stages, stream, **sampling)
    stream.put({name: thought.tensors[name] for name in HEAD}, HEAD)
    for row in rows:
        stream.put({"x": row[None]})
        await asyncio.sleep(0.005)
    # The talker ends by itself, although the stream of rows is never ended.
    spoken = await asyncio.wait_for(task, PATIENCE_S)
    same(spoken, await stages.ask("talker", thought.tensors, **sampling))
    assert len(spoken.token_ids) <= 2
    assert await until_empty(stages.engines["talker"]) == {}


@both_ways
async def test_live_alone_and_eight_at_once(stages: OmniStages) -> None:
    """Eight requests with different prompts, lengths, seeds and ends stream from thinker to talker concurrently."""
    texts = [
        "Hello",
        "Hi",
        "What is this?",
        "Tell me about the weather in a few words.",
        "1, 2, 3",
        "Go on",
        "a b",
        "?",
    ]
    jobs = []
    for index, text in enumerate(texts):
        sampling = dict(list(TALKERS.values())[index % 6], max_tokens=12 + 9 * index)
        thinker = {"temperature": 0.8, "seed": index, "max_tokens": 6 + 7 * index, "ignore_eos": index % 2 == 1}
        jobs.append((ReferencePrompt(text, system=PLAIN_SYSTEM_PROMPT).to_user_prompt(), thinker, sampling))
    expected = []
    for prompt, thinker, sampling in jobs:
        wrote = await stages.ask("thinker", prompt, **thinker)
        expected.append((wrote, await stages.ask("talker", wrote.tensors, **sampling)))
    engines = stages.engines["thinker"], stages.engines["talker"]
    alone = [await run_live(*engines, *jobs[index]) for index in (0, 3)]
    together = await asyncio.gather(*(run_live(*engines, *job) for job in jobs))
    for (wrote, spoke, _), (full_wrote, full_spoke) in zip(
        [*alone, *together], [expected[0], expected[3], *expected], strict=True
    ):
        assert wrote.token_ids == full_wrote.token_ids
        same(spoke, full_spoke)
    order = alone[1][2]
    assert order.index("talker") < len(order) - 1 - order[::-1].index("thinker"), "the talker began in time"
    for engine in engines:
        assert await until_empty(engine) == {}


async def test_nothing_to_speak(stages: OmniStages) -> None:
    wrote, spoke, _ = await run_live(
        stages.engines["thinker"], stages.engines["talker"], ENDING, {**GREEDY, "max_tokens": 1}, GREEDY
    )
    assert len(wrote.token_ids) == 1
    assert (spoke.finish_reason, spoke.token_ids) == (FinishReason.EMPTY_INPUT, [])


@both_ways
async def test_leaving_a_half_fed_request_ends_it_everywhere(stages: OmniStages, thought: Collected) -> None:
    talker = stages.engines["talker"]
    rows = thought.tensors["x"]
    prompt = len(thought.tensors["mrope_positions"])
    for leave in ("while it waits for rows", "while it runs", "before the first rows"):
        stream = EdgeStream()
        if leave != "before the first rows":
            stream.put({**{name: thought.tensors[name] for name in HEAD}, "x": rows[: prompt + 3]}, HEAD)
        if leave == "while it runs":
            stream.end()
        request = stage_request(talker, stream, **GREEDY, max_tokens=120, ignore_eos=True)
        task = asyncio.create_task(collect(talker, request))
        if leave == "while it waits for rows":
            await until(lambda: table_sizes(talker)["waiting for input"] == 1)
            # The watchdog must not count a request that waits for its upstream.
            await until(lambda: talker.unfinished_requests == 0)
        elif leave == "while it runs":
            await until(lambda: talker.unfinished_requests == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until_empty(talker) == {}, leave
        assert talker.unfinished_requests == 0


async def test_abort_by_id(stages: OmniStages, thought: Collected) -> None:
    talker, stream = stages.engines["talker"], EdgeStream()
    stream.put({**{name: thought.tensors[name] for name in HEAD}, "x": thought.tensors["x"]}, HEAD)
    request = stage_request(talker, stream, **GREEDY, max_tokens=120, ignore_eos=True)
    async with aclosing(talker.generate(request)) as steps:
        await anext(steps)
        await talker.abort(request.request_id)
    assert await until_empty(talker) == {}


REFUSED: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 2},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_would_mean_something_else_is_refused(stages: OmniStages, thought: Collected, name: str) -> None:
    stream = EdgeStream()
    put_cut(stream, thought.tensors, [4])
    with pytest.raises(InvalidRequestError, match=name) as caught:
        await talk(stages, stream, **REFUSED[name])
    assert caught.value.details.field == f"sampling.{name}"
    full = await stages.ask("talker", thought.tensors, **{**GREEDY, "max_tokens": 4, **REFUSED[name]})
    assert full.token_ids, "with its whole input the same stage honours it"


@both_ways
async def test_bad_rows_in_the_middle_end_the_request_alone(stages: OmniStages, thought: Collected) -> None:
    prompt = len(thought.tensors["mrope_positions"])
    good, bad = EdgeStream(), EdgeStream()
    for stream in (good, bad):
        stream.put({**{name: thought.tensors[name] for name in HEAD}, "x": thought.tensors["x"][: prompt + 2]}, HEAD)
    tasks = [talk(stages, stream, **GREEDY, max_tokens=64) for stream in (good, bad)]
    await until(lambda: table_sizes(stages.engines["talker"])["waiting for input"] == 2)
    bad.put({"x": torch.ones(1, 3)})
    good.put({"x": thought.tensors["x"][prompt + 2 :]})
    good.end()
    with pytest.raises(InvalidTensorError, match="a row has 3 values"):
        await tasks[1]
    same(await tasks[0], await stages.ask("talker", thought.tensors, **GREEDY, max_tokens=64))
    assert await until_empty(stages.engines["talker"]) == {}


async def test_a_prompt_that_does_not_fit(stages: OmniStages, thought: Collected) -> None:
    stream = EdgeStream()
    rows = thought.tensors["x"][:1].repeat(300, 1)
    tensors = {"x": rows, "mrope_positions": torch.zeros(200, 3, dtype=torch.int64), "mrope_delta": torch.zeros(1)}
    put_cut(stream, {**tensors, "mrope_delta": torch.zeros(1, dtype=torch.int64)}, [250])
    with pytest.raises(PromptTooLongError):
        await talk(stages, stream, **GREEDY)


async def test_an_id_in_use(stages: OmniStages, thought: Collected) -> None:
    talker, streams = stages.engines["talker"], [EdgeStream(), EdgeStream()]
    for stream in streams:
        stream.put({**{name: thought.tensors[name] for name in HEAD}, "x": thought.tensors["x"]}, HEAD)
    first = stage_request(talker, streams[0], **GREEDY, max_tokens=64)
    task = asyncio.create_task(collect(talker, first))
    await until(lambda: table_sizes(talker)["scheduler"] == 1)
    second: StageRequest = dataclasses.replace(first, source=streams[1])
    with pytest.raises(InvalidRequestError, match="in use"):
        await collect(talker, second)
    streams[0].end()
    assert (await task).token_ids
