"""Which channel a call takes: a lasting one, and a new one after one that could not reach the pipeline.

gRPC asks again for a name that did not resolve only after pauses that grow to two minutes (gRPC core 1.85,
`polling_resolver.cc`), and no channel option shortens them: a client that called while the entry's only pod was
replaced would miss it for as long after it is back. A new channel asks at once. Stages do the same
(omni_stage/service/edges/channels.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc

Channel = TypeVar("Channel")

RENEW_AFTER_S = 2.0
"""Least age of a channel that is replaced because a call could not reach the pipeline by it."""


@dataclass(slots=True, eq=False)
class Line(Generic[Channel]):
    """A channel and the calls on it."""

    channel: Channel
    opened: float
    """time.monotonic() in seconds."""
    calls: int = 0


def is_unreached(error: grpc.RpcError | None, accepted: bool) -> bool:
    """Whether a call failed before any stage answered it: no connection, or no address."""
    return error is not None and not accepted and error.code() is grpc.StatusCode.UNAVAILABLE


class Lines(Generic[Channel]):
    """The channel of new calls, and earlier ones until their calls have ended. Threads may share it."""

    def __init__(self, open_channel: Callable[[], Channel], *, renew_after_s: float = RENEW_AFTER_S) -> None:
        self._open = open_channel
        self._renew_after_s = renew_after_s
        self._lock = threading.Lock()
        self._current = self._new()
        self._retired: list[Line[Channel]] = []
        self.closed = False
        """Whether no call can be made any more."""

    def take(self) -> Line[Channel]:
        """The line for a call; give_back must follow."""
        with self._lock:
            self._current.calls += 1
            return self._current

    def give_back(self, line: Line[Channel], *, lost: bool) -> Channel | None:
        """A call has ended; lost: it did not reach the pipeline. Returns a channel that nobody needs: to be closed."""
        with self._lock:
            line.calls -= 1
            old_enough = time.monotonic() - line.opened >= self._renew_after_s
            if lost and old_enough and line is self._current:
                self._retired.append(line)
                self._current = self._new()
            if line.calls or line not in self._retired:
                return None
            self._retired.remove(line)
            return line.channel

    def close(self) -> list[Channel]:
        """All channels, to be closed."""
        with self._lock:
            self.closed = True
            retired, self._retired = self._retired, []
            return [line.channel for line in (*retired, self._current)]

    def _new(self) -> Line[Channel]:
        return Line(self._open(), time.monotonic())
