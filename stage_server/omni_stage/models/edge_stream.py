"""The input of a stage that starts before its upstream has ended: rows as they come, and what a component makes of it.

The producer (the stage server's reader, a test) puts rows; the consumer (the engine) reads when it can use more, and
gets everything that came meanwhile at once. So a slow consumer gets few large batches and a fast one many small ones,
and nothing ever waits for the consumer: what may queue was reserved when the request was admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from omni_stage.arrays import Array, join

if TYPE_CHECKING:
    from omni_stage.models.component import StageInput


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """Rows that came since the read before."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    """By name, each [rows, *row_shape] as the input schema says, of the kind that StageEngine.open_tensors gives;
    tensors without new rows are left out."""
    complete: frozenset[str] = frozenset()
    """Tensors of which no more rows come, those of earlier reads included."""
    ended: bool = False
    """Whether this is all: every tensor is complete."""


class EdgeStream:
    """One request's rows between one producer and one consumer on one event loop."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = {}
        self._complete: set[str] = set()
        self._ended = False
        self._news = asyncio.Event()

    def put(self, tensors: Mapping[str, Array], complete: Iterable[str] = ()) -> None:
        """Append rows, on the CPU. `complete`: tensors of which no more come. Never blocks."""
        before = len(self._complete)
        self._complete.update(complete)
        for name, rows in tensors.items():
            if rows.shape[0]:
                self._parts.setdefault(name, []).append(rows)
                self._news.set()
        if len(self._complete) != before:
            self._news.set()

    def end(self) -> None:
        """No more rows of any tensor."""
        self._ended = True
        self._news.set()

    async def read(self) -> EdgeRows:
        """Everything that came since the last read; waits until there is something, or the end."""
        await self._news.wait()
        # After the end there is no more news, but every further read says so again.
        if not self._ended:
            self._news.clear()
        parts, self._parts = self._parts, {}
        tensors = {name: join(rows) for name, rows in parts.items()}
        return EdgeRows(tensors, frozenset(self._complete), self._ended)


@dataclass(frozen=True, slots=True)
class InputPart:
    """What a component made of rows: a part of the engine's input.

    To an autoregressive engine all parts are one request, which goes on after the last part where it stopped. To a
    diffusion engine each part is a request by itself, whose outputs follow one another.
    """

    input: StageInput
    """The first part's is whole; of later ones an autoregressive engine takes additional_information alone."""
    max_tokens: int | None = None
    """Autoregressive: tokens that can be written with this part's rows; None if the input is complete."""
    last: bool = False
    """Whether no part follows."""


class InputFeed(Protocol):
    """Turns one request's rows into parts; made by Component.open_feed. Holds the request's state; never waits."""

    def add(self, rows: EdgeRows) -> None:
        """Take rows. Raises OmniStageError."""
        ...

    def next_part(self) -> InputPart | None:
        """The next part of what was added; None while there is nothing that the engine could do with it.

        Once rows have ended it is never None, up to the last part. Raises OmniStageError.
        """
        ...


async def read_part(stream: EdgeStream, feed: InputFeed, *, in_thread: bool = False) -> InputPart:
    """The next part, once the rows for it are there. `in_thread`: compute it beside the event loop.

    Raises OmniStageError.
    """
    while True:
        part = await asyncio.to_thread(feed.next_part) if in_thread else feed.next_part()
        if part is not None:
            return part
        feed.add(await stream.read())
