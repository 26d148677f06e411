"""The input of a stage that starts before its upstream stage has ended: arriving rows, and the parts made from them.

The producer (the stage server's reader, or a test) puts rows. The consumer (the engine) reads when it can use more
rows, and gets all rows that have arrived since its last read. So a slow consumer gets a few large batches, and a fast
consumer many small ones. The producer never waits for the consumer: the memory for queued rows was reserved when the
request was admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from omni_stage.exchange.arrays import Array, join

if TYPE_CHECKING:
    from omni_stage.models.component import EngineInput


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """Rows that arrived since the previous read."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    """By name, each [rows, *row_shape] as the input schema defines, of the type that StageEngine.open_tensors returns;
    tensors without new rows are left out."""
    complete: frozenset[str] = frozenset()
    """Names of all tensors that get no more rows, including those that earlier reads already reported."""
    ended: bool = False
    """Whether the input has ended, so that every tensor is complete."""


class EdgeStream:
    """Queues one request's rows between one producer and one consumer on the same event loop."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = {}
        self._complete: set[str] = set()
        self._ended = False
        self._news = asyncio.Event()

    def put(self, tensors: Mapping[str, Array], complete: Iterable[str] = ()) -> None:
        """Append rows, on the CPU. `complete` names tensors that get no more rows. Never blocks."""
        before = len(self._complete)
        self._complete.update(complete)
        for name, rows in tensors.items():
            if rows.shape[0]:
                self._parts.setdefault(name, []).append(rows)
                self._news.set()
        if len(self._complete) != before:
            self._news.set()

    def end(self) -> None:
        """Mark every tensor as complete."""
        self._ended = True
        self._news.set()

    async def read(self) -> EdgeRows:
        """Returns all rows that arrived since the last read. Waits for rows, a tensor's completion or the end."""
        await self._news.wait()
        # After the end nothing changes, but every further read reports the end again.
        if not self._ended:
            self._news.clear()
        parts, self._parts = self._parts, {}
        tensors = {name: join(rows) for name, rows in parts.items()}
        return EdgeRows(tensors, frozenset(self._complete), self._ended)


@dataclass(frozen=True, slots=True)
class InputPart:
    """A part of the engine's input, which a component made from rows.

    An autoregressive engine treats all parts as one request: with each part the request continues where it stopped. A
    diffusion engine treats each part as a separate request. The parts' outputs keep the order of the parts.
    """

    input: EngineInput
    """Complete in the first part. From later parts, an autoregressive engine reads only additional_information."""
    max_tokens: int | None = None
    """Autoregressive engines: how many tokens can be sampled with this part's rows; None if the input is complete."""
    last: bool = False
    """Whether no part follows."""


class InputFeed(Protocol):
    """Turns one request's rows into parts; made by TakesStreams.open_feed. Holds the request's state; never waits."""

    def add(self, rows: EdgeRows) -> None:
        """Append rows. Raises OmniStageError."""
        ...

    def next_part(self) -> InputPart | None:
        """Returns the next part of the added rows; None while there are too few for the engine to use.

        After the end of the rows it returns a part at every call, up to the last part. Raises OmniStageError.
        """
        ...


async def read_part(stream: EdgeStream, feed: InputFeed, *, in_thread: bool = False) -> InputPart:
    """Returns the next part as soon as its rows have arrived. `in_thread`: compute the part in a thread.

    Raises OmniStageError.
    """
    while True:
        part = await asyncio.to_thread(feed.next_part) if in_thread else feed.next_part()
        if part is not None:
            return part
        feed.add(await stream.read())
