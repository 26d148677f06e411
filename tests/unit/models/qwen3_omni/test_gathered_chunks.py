"""How code2wav cuts a stream of frames into chunks: the first frame at once, then more while the listener has audio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from omni_stage.models.component import EdgeRows, EdgeStream, EngineInput, GathersRows, InputPart, gather_rows
from omni_stage.models.qwen3_omni.code2wav.component import MAX_CHUNK_FRAMES, CodesFeed
from support.processes.polling import PATIENCE_S

GROUPS = 4


def feed(first_frames: int = 1) -> CodesFeed:
    def build(codes: torch.Tensor, first: int, last: bool) -> EngineInput:
        return EngineInput(prompt={"prompt_token_ids": codes[:, 0].tolist()})

    return CodesFeed(lambda codes, before: None, build, first_frames)


def frames(first: int, count: int) -> dict[str, Any]:
    return {"codes": torch.arange(first, first + count)[:, None].expand(-1, GROUPS)}


def content(part: InputPart | None) -> list[int]:
    assert part is not None
    return list(part.input.prompt["prompt_token_ids"])


@pytest.mark.parametrize(
    ("waiting", "taken"), [(1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (9, 8), (63, 32), (64, 64), (500, 64)]
)
def test_a_later_chunk_has_a_number_of_frames_with_a_graph(waiting: int, taken: int) -> None:
    one = feed()
    one.add(EdgeRows(frames(0, 1)))
    assert content(one.next_part()) == [0]
    one.add(EdgeRows(frames(1, waiting)))
    assert content(one.next_part()) == list(range(1, 1 + taken))


def test_the_first_chunk_and_the_last_have_all_frames() -> None:
    one = feed(first_frames=3)
    one.add(EdgeRows(frames(0, 2)))
    assert one.next_part() is None
    one.add(EdgeRows(frames(2, 1)))
    assert content(one.next_part()) == [0, 1, 2]
    one.add(EdgeRows(frames(3, 7), ended=True))
    last = one.next_part()
    assert content(last) == list(range(3, 10))
    assert last is not None
    assert last.last


@pytest.mark.parametrize("arrivals", [[1] * 300, [300], [5, 1, 200, 94], [MAX_CHUNK_FRAMES + 1, 199]])
def test_every_frame_is_in_one_chunk(arrivals: list[int]) -> None:
    one, taken, came = feed(), [], 0
    for number, count in enumerate(arrivals):
        one.add(EdgeRows(frames(came, count), ended=number == len(arrivals) - 1))
        came += count
        if (part := one.next_part()) is not None:
            taken += content(part)
    while len(taken) < came:
        taken += content(one.next_part())
    assert taken == list(range(300))


def test_chunks_ask_for_twice_the_frames_of_the_one_before_up_to_eight() -> None:
    one, sizes = feed(), []
    assert isinstance(one, GathersRows)
    assert not one.wants_more, "nothing waits before the first frame"
    for frame in range(40):
        one.add(EdgeRows(frames(frame, 1)))
        if not one.wants_more:
            sizes.append(len(content(one.next_part())))
    assert sizes == [1, 2, 4, 8, 8, 8, 8]
    one.add(EdgeRows({}, ended=True))
    assert not one.wants_more


async def test_gathering_ends_with_enough_rows() -> None:
    one, stream = feed(), EdgeStream()
    one.add(EdgeRows(frames(0, 1)))
    one.next_part()
    gathering = asyncio.create_task(gather_rows(stream, one, PATIENCE_S))
    stream.put(frames(1, 1))
    await asyncio.sleep(0.01)
    assert not gathering.done()
    stream.put(frames(2, 1))
    await gathering
    assert content(one.next_part()) == [1, 2]


async def test_gathering_ends_with_the_stream() -> None:
    one, stream = feed(), EdgeStream()
    one.add(EdgeRows(frames(0, 1)))
    one.next_part()
    stream.put(frames(1, 1))
    stream.end()
    await gather_rows(stream, one, PATIENCE_S)
    assert content(one.next_part()) == [1]


async def test_no_row_is_lost_when_time_is_over() -> None:
    """The wait ends at times that have nothing to do with the arrival of rows, and every row is read once."""
    one, stream, taken = feed(), EdgeStream(), []

    async def put() -> None:
        for frame in range(200):
            stream.put(frames(frame, 1))
            await asyncio.sleep(0.0005)
        stream.end()

    putting = asyncio.create_task(put())
    while len(taken) < 200:
        await gather_rows(stream, one, 0.0007)
        part = one.next_part()
        if part is None:
            one.add(await stream.read())
        else:
            taken += content(part)
    await putting
    assert taken == list(range(200))


async def test_a_feed_of_fixed_parts_never_waits() -> None:
    class Fixed:
        def add(self, rows: EdgeRows) -> None:
            raise AssertionError("read although nobody asked for more")

        def next_part(self) -> InputPart | None:
            return None

    await gather_rows(EdgeStream(), Fixed(), PATIENCE_S)
