"""Decides which requests with streamed input (sessions) may hold KV cache: only as many as can all run to completion.

A session keeps its KV cache while it waits for rows of the upstream stage, and vLLM cannot preempt a session that
waits. If several sessions ran out of blocks, they could wait for one another forever. So before a session enters the
engine, it reserves all blocks of the longest sequence that it can become (its prompt and its max_tokens). A session
that waits for its blocks holds none. A session that has entered can therefore always finish, whatever other sessions
wait for. Sessions enter by priority, then in order of arrival. If the first session in the queue does not fit, no later
one enters before it, so short sessions cannot starve a long one.

SessionQueue makes the decisions, without a clock or an event loop. Sessions lets coroutines wait for them.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

YIELDING_SHARE: Final = 0.75
"""A session with a priority above 0 enters only if, with it, at most this share of the engine's sessions and blocks is
in use. The rest is kept for sessions of priority 0 and below, which could not preempt a session that has entered. An
empty engine admits any session. service/guard/admission.py applies the same share to a stage's requests and bytes."""


@dataclass(frozen=True, slots=True)
class SessionRoom:
    """The engine's capacity for sessions."""

    sessions: int
    """Maximum number of sessions that may be open concurrently; each occupies a slot of the model runner's batch."""
    blocks: int | None = None
    """Blocks of the KV cache that sessions can fill; None without a KV cache."""
    block_tokens: int = 1
    """Tokens per block."""
    minimum_tokens: int = 0
    """Minimum number of tokens that are counted for a session, however short it is. Where layers need different numbers
    of blocks, vLLM reports only how many sequences of full length fit, so each session is counted at full length."""

    def blocks_for(self, tokens: int) -> int:
        """Returns how many blocks a session of `tokens` tokens needs; never more than there are."""
        if self.blocks is None:
            return 0
        return min(self.blocks, -(-max(tokens, self.minimum_tokens) // self.block_tokens))


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A session that has entered the engine or waits to enter."""

    priority: int
    """Lower values enter first."""
    blocks: int
    entered: bool = False


@dataclass(slots=True)
class SessionQueue:
    """Decides which sessions enter. Not thread-safe; needs no event loop."""

    room: SessionRoom
    open: int = 0
    """Number of sessions that have entered and have not left yet."""
    held: int = 0
    """Blocks that these sessions hold."""
    waiting: list[QueueEntry] = field(default_factory=list)
    """In the order in which they will enter."""

    def join(self, tokens: int, priority: int = 0) -> tuple[QueueEntry, list[QueueEntry]]:
        """Returns the entry of a new session that can grow to `tokens` tokens, and the entries that enter now."""
        entry = QueueEntry(priority, self.room.blocks_for(tokens))
        # insort inserts after the entries of equal priority, which arrived earlier.
        bisect.insort(self.waiting, entry, key=attrgetter("priority"))
        return entry, self._enter()

    def leave(self, entry: QueueEntry) -> list[QueueEntry]:
        """Remove a session that has ended or that stopped waiting. Returns the entries that enter now."""
        if entry.entered:
            self.open -= 1
            self.held -= entry.blocks
        else:
            self.waiting.remove(entry)
        return self._enter()

    def _enter(self) -> list[QueueEntry]:
        entered: list[QueueEntry] = []
        while self.waiting and self._fits(self.waiting[0]):
            entry = self.waiting.pop(0)
            entry.entered = True
            self.open += 1
            self.held += entry.blocks
            entered.append(entry)
        return entered

    def _fits(self, entry: QueueEntry) -> bool:
        if not self.open:
            return True
        share = YIELDING_SHARE if entry.priority > 0 else 1.0
        if self.open >= int(self.room.sessions * share):
            return False
        return self.room.blocks is None or self.held + entry.blocks <= int(self.room.blocks * share)


class Sessions:
    """Makes sessions wait on the event loop until their SessionQueue lets them enter."""

    def __init__(self, room: SessionRoom) -> None:
        self.queue = SessionQueue(room)
        self._waiters: dict[QueueEntry, asyncio.Event] = {}

    @asynccontextmanager
    async def enter(self, tokens: int, priority: int = 0) -> AsyncGenerator[None, None]:
        """Wait until a session that can grow to `tokens` tokens fits, and reserve its KV cache while the context is
        open."""
        entry, entered = self.queue.join(tokens, priority)
        turn = self._waiters[entry] = asyncio.Event()
        self._wake(entered)
        try:
            await turn.wait()
            yield
        finally:
            del self._waiters[entry]
            self._wake(self.queue.leave(entry))

    def _wake(self, entered: list[QueueEntry]) -> None:
        for entry in entered:
            self._waiters[entry].set()
