"""Which channel a call takes: a lasting one, and a new one after one that could not reach its stage.

A name that does not resolve, as that of a stage whose only pod is being replaced, is asked for again by gRPC's DNS
resolver after 1 s, and then after pauses that grow by 1.6 up to two minutes (gRPC core 1.85, `polling_resolver.cc`);
no channel option shortens them. A stage that came back after a minute would be missed for another. A new channel has a
new resolver, which asks at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc
import grpc.aio

Channel = TypeVar("Channel")

RENEW_AFTER_S: Final = 2.0
"""Least age of a channel that is replaced because a call could not reach its stage."""


@dataclass(slots=True, eq=False)
class _Opened(Generic[Channel]):
    """A channel and how many calls are on it."""

    channel: Channel
    since: float
    """time.monotonic() in seconds."""
    calls: int = 0


@dataclass(slots=True, eq=False)
class Loan(Generic[Channel]):
    """A channel for the time of one call."""

    channel: Channel
    opened: _Opened[Channel]
    unreached: bool = False
    """Set by the borrower if the call did not reach its stage: `retry.is_unreached`."""
    over: bool = False


class ChannelPool(Generic[Channel]):
    """The channel of new calls, and earlier ones until their calls have ended. Threads may share it."""

    def __init__(self, open_channel: Callable[[], Channel], *, renew_after_s: float = RENEW_AFTER_S) -> None:
        self._open = open_channel
        self._renew_after_s = renew_after_s
        self._lock = threading.Lock()
        self._current = self._new()
        self._retired: list[_Opened[Channel]] = []
        self.closed = False
        """Whether no call can be made any more."""

    def take(self) -> Loan[Channel]:
        """Returns a channel for a call; give_back must follow."""
        with self._lock:
            self._current.calls += 1
            return Loan(self._current.channel, self._current)

    def give_back(self, loan: Loan[Channel]) -> Channel | None:
        """A call has ended. Returns a channel that nobody needs any more, for the caller to close. Idempotent."""
        with self._lock:
            if loan.over:
                return None
            loan.over = True
            opened = loan.opened
            opened.calls -= 1
            old_enough = time.monotonic() - opened.since >= self._renew_after_s
            if loan.unreached and old_enough and opened is self._current and not self.closed:
                self._retired.append(opened)
                self._current = self._new()
            if opened.calls or opened not in self._retired:
                return None
            self._retired.remove(opened)
            return opened.channel

    def close(self) -> list[Channel]:
        """Returns all channels, for the caller to close."""
        with self._lock:
            self.closed = True
            retired, self._retired = self._retired, []
            return [opened.channel for opened in (*retired, self._current)]

    def _new(self) -> _Opened[Channel]:
        return _Opened(self._open(), time.monotonic())


@contextmanager
def borrow(pool: ChannelPool[grpc.Channel]) -> Iterator[Loan[grpc.Channel]]:
    """Lends a blocking channel for one call, and closes it if nobody needs it afterwards."""
    loan = pool.take()
    try:
        yield loan
    finally:
        if (unused := pool.give_back(loan)) is not None:
            unused.close()


@asynccontextmanager
async def borrow_aio(pool: ChannelPool[grpc.aio.Channel]) -> AsyncIterator[Loan[grpc.aio.Channel]]:
    """Lends an asyncio channel for one call, and closes it if nobody needs it afterwards."""
    loan = pool.take()
    try:
        yield loan
    finally:
        if (unused := pool.give_back(loan)) is not None:
            await unused.close()
