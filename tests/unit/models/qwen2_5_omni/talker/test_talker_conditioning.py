"""Streamed input: however the thinker's rows are split, the talker reads the same as if all rows came together."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st

from omni_stage.errors import InvalidTensorError
from omni_stage.models.component import EdgeRows, EdgeStream, EngineStep, FinishReason, InputPart
from omni_stage.models.qwen2_5_omni.checkpoint import CodecTokens
from omni_stage.models.qwen2_5_omni.processors import TalkerConditioning, TextRows, thinker2talker
from omni_stage.models.qwen2_5_omni.thinker.component import ThinkerEmitter
from omni_stage.models.shared.talker_feed import TalkerFeed
from omni_stage.models.shared.thinker import SpokenTokens

CODEC = CodecTokens(padding=129, start=130, end=131, mask=133)
POSITIONS, REPEAT_LIMIT = 32_768, 500
TEXT = TextRows(start=torch.full((1, 2), 1.0), end=torch.full((1, 2), 2.0), padding=torch.full((1, 2), 3.0))
HEAD = frozenset({"mrope_positions", "mrope_delta"})


def edge(rows: int, prompt: int, delta: int = 0) -> dict[str, torch.Tensor]:
    """Returns the tensors that a thinker publishes. In `x`, each value of row p is 10 + p."""
    return {
        "x": (torch.arange(rows, dtype=torch.float32) + 10)[:, None].repeat(1, 2),
        "mrope_positions": torch.arange(prompt)[:, None].repeat(1, 3),
        "mrope_delta": torch.tensor([delta]),
    }


def feed_of(ignore_eos: bool = False) -> TalkerFeed:
    """Returns a talker's feed. With ignore_eos, as for ignore_eos, the codec's end tokens are never sampled."""
    conditioning = TalkerConditioning(TEXT, CODEC, POSITIONS)
    return TalkerFeed(conditioning, CODEC.stop_ids, ignore_eos=ignore_eos, repeat_limit=REPEAT_LIMIT)


def run_feed(batches: list[EdgeRows]) -> list[InputPart]:
    """Returns the parts of a feed, which is asked for one part after each batch."""
    feed, parts = feed_of(), []
    for batch in batches:
        feed.add(batch)
        part = feed.next_part()
        if part is not None:
            parts.append(part)
    return parts


def positions_of(part: InputPart) -> tuple[int, torch.Tensor]:
    information = part.input.additional_information
    assert information is not None
    offset = information.list("input_rows_offset")[0] if "input_rows_offset" in information else 0
    assert isinstance(offset, int)
    return offset, information.tensor("input_rows")


@st.composite
def cut_edges(draw: st.DrawFn) -> tuple[dict[str, torch.Tensor], list[EdgeRows]]:
    """Returns an edge's tensors, and the same tensors in batches.

    x is split at random rows. The prompt's tensors are inserted before, between or after the batches of x.
    """
    prompt, reply = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    whole = edge(prompt + reply, prompt, draw(st.integers(-min(3, prompt), 3)))
    cuts = sorted(draw(st.sets(st.integers(1, prompt + reply - 1))))
    pieces = [whole["x"][begin:end] for begin, end in pairwise([0, *cuts, prompt + reply])]
    batches = [EdgeRows({"x": piece}) for piece in pieces]
    head = {name: whole[name] for name in HEAD}
    where = draw(st.integers(0, len(batches)))
    split = draw(st.integers(0, prompt))
    batches[where:where] = [
        EdgeRows({"mrope_positions": head["mrope_positions"][:split]}),
        EdgeRows({"mrope_positions": head["mrope_positions"][split:]}),
        EdgeRows({"mrope_delta": head["mrope_delta"]}, complete=HEAD),
    ]
    if draw(st.booleans()):
        last = batches.pop()
        batches.append(EdgeRows(last.tensors, last.complete, ended=True))
    else:
        batches.append(EdgeRows(ended=True))
    return whole, batches


@given(cut_edges())
@settings(max_examples=150)
def test_parts_add_up_to_the_whole(case: tuple[dict[str, torch.Tensor], list[EdgeRows]]) -> None:
    whole, batches = case
    expected = thinker2talker(whole, TEXT, CODEC, 32_768)
    assert expected is not None
    parts = run_feed(batches)
    rows = torch.empty(0, 2)
    for part in parts:
        offset, chunk = positions_of(part)
        assert offset == len(rows), "each part begins where the previous one ended"
        rows = torch.cat([rows, chunk])
    assert torch.equal(rows, expected.input_rows)
    first = parts[0].input
    assert first.additional_information is not None
    assert first.prompt == {"prompt_token_ids": expected.prompt_token_ids}
    assert torch.equal(first.additional_information.tensor("mrope_positions"), expected.mrope_positions)
    assert first.additional_information.list("mrope_delta") == [expected.mrope_delta]
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    # From the prompt's last position on, a token is sampled at every position that has a row.
    tokens = [part.max_tokens for part in parts[:-1]]
    assert parts[-1].max_tokens is None
    placed = sum(len(positions_of(part)[1]) for part in parts[:-1])
    if tokens:
        assert sum(count or 0 for count in tokens) == placed - len(expected.prompt_token_ids) + 1
        assert all(count is not None and count >= 1 for count in tokens)


def test_starts_with_the_first_row_of_the_reply() -> None:
    """Rows of the thinker's prompt are not enough, because the talker's prompt also holds the reply's first row."""
    whole, feed = edge(6, 3), feed_of()
    feed.add(EdgeRows({**whole, "x": whole["x"][:3]}, complete=HEAD))
    assert feed.next_part() is None
    feed.add(EdgeRows({"x": whole["x"][3:4]}))
    part = feed.next_part()
    assert part is not None
    assert positions_of(part)[1][:, 0].tolist() == [10, 11, 12, 1, 13]
    assert (part.max_tokens, part.last) == (1, False)
    assert feed.next_part() is None
    feed.add(EdgeRows({"x": whole["x"][4:]}))
    part = feed.next_part()
    assert part is not None
    assert (positions_of(part)[0], part.max_tokens) == (5, 2)
    feed.add(EdgeRows(ended=True))
    part = feed.next_part()
    assert part is not None
    assert positions_of(part)[1][:, 0].tolist() == [2, 3]
    assert (part.max_tokens, part.last) == (None, True)


def test_does_not_start_before_the_prompts_length_is_known() -> None:
    whole, feed = edge(6, 3), feed_of()
    feed.add(EdgeRows(whole))
    assert feed.next_part() is None, "more positions might follow"
    feed.add(EdgeRows(complete=HEAD))
    assert feed.next_part() is not None


def test_nothing_to_speak_ends_as_empty_input() -> None:
    feed = feed_of()
    feed.add(EdgeRows(edge(3, 3), complete=HEAD))
    assert feed.next_part() is None
    feed.add(EdgeRows(ended=True))
    part = feed.next_part()
    assert part is not None
    assert part.input.finished is FinishReason.EMPTY_INPUT
    assert part.last


@pytest.mark.parametrize(
    ("batches", "words"),
    {
        "nothing": ([EdgeRows(ended=True)], "x: is missing"),
        "no positions": ([EdgeRows({"x": torch.ones(3, 2)}), EdgeRows(ended=True)], "mrope_positions: is missing"),
        "wide rows later": ([EdgeRows(edge(5, 3), HEAD), EdgeRows({"x": torch.ones(1, 3)})], "a row has 3 values"),
        "flat rows later": ([EdgeRows(edge(5, 3), HEAD), EdgeRows({"x": torch.ones(1)})], "must have 2 dimensions"),
        "too few": ([EdgeRows(edge(2, 3), HEAD), EdgeRows(ended=True)], "fewer than the 3 prompt tokens"),
    }.values(),
)
def test_bad_rows_are_refused_whenever_they_come(batches: list[EdgeRows], words: str) -> None:
    with pytest.raises(InvalidTensorError, match=words):
        run_feed(batches)


def test_the_end_of_the_codec_stream() -> None:
    for ignore_eos in (False, True):
        feed = feed_of(ignore_eos)
        feed.add(EdgeRows(edge(5, 3), ended=True))
        part = feed.next_part()
        assert part is not None
        assert tuple(part.input.stop_token_ids) == (() if ignore_eos else CODEC.stop_ids)
        assert tuple(part.input.suppress_token_ids) == (CODEC.stop_ids if ignore_eos else ())


async def test_an_edge_stream_gives_what_queued_at_once() -> None:
    """One read returns all rows that have queued up."""
    stream = EdgeStream()
    stream.put({"x": torch.zeros(2, 1), "y": torch.zeros(0)})
    stream.put({"x": torch.ones(1, 1)}, complete=["y"])
    rows = await stream.read()
    assert {name: tensor.shape[0] for name, tensor in rows.tensors.items()} == {"x": 3}
    assert (rows.complete, rows.ended) == (frozenset({"y"}), False)
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    stream.put({"x": torch.zeros(0, 1)})
    await asyncio.sleep(0)
    assert not reading.done(), "an empty batch wakes no reader"
    stream.end()
    rows = await reading
    assert (dict(rows.tensors), rows.ended) == ({}, True)
    assert (await stream.read()).ended, "later reads also report the end"


def test_the_thinker_says_when_its_prompts_tensors_are_complete() -> None:
    emitter = ThinkerEmitter(want_tensors=True, dtype=torch.float32, spoken=SpokenTokens(None, str))
    head = {"mrope_positions": torch.zeros(3, 3), "mrope_delta": torch.zeros(1)}
    first = emitter.emit(
        EngineStep(token_ids=[7], prompt_token_ids=[1, 2, 3], tensors={"rows": torch.ones(3, 2), **head})
    )
    assert set(first.tensors) == {"x", "token_ids", *HEAD}
    assert first.complete_tensors == HEAD
    second = emitter.emit(EngineStep(token_ids=[8], tensors={"rows": torch.ones(1, 2)}))
    assert set(second.tensors) == {"x", "token_ids"}
    silent = ThinkerEmitter(want_tensors=False, dtype=torch.float32, spoken=SpokenTokens(None, str))
    assert silent.emit(EngineStep(token_ids=[7], prompt_token_ids=[1])).complete_tensors == frozenset()
