"""Channels to stages: the only place where they are opened, and the pool that lends one to each call.

Every caller of a stage gets its channel from `balance.pool.StageChannels.take`: both clients, the gateway (through a
client), and a stage that calls the next one. It lends a channel to one pod; or the one of ChannelPool, to the stage's
name, while it knows no pods. Calls share that channel, which is replaced after a call that could not reach its stage: a
name may not resolve, for example while the only pod of a stage is replaced. gRPC's DNS resolver then retries after
1 s, and after pauses that grow by a factor of 1.6 up to two minutes (gRPC core 1.85, `polling_resolver.cc`). No channel
option shortens them, so a stage that returns after a minute might stay unreachable for another minute. A new channel
has a new resolver, which resolves the name immediately.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc
import grpc.aio

from omni_proto.rpc.balance.addresses import authority_of
from omni_proto.rpc.balance.report import LoadReport
from omni_proto.rpc.options import Options, complete_options


def open_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Iterable[tuple[str, int | str]] | None = None,
) -> grpc.Channel:
    """Open a blocking channel; without credentials it is plaintext.

    options: used instead of the defaults of `omni_proto.rpc.options.channel_options`. Options that every channel needs
    are always added.
    """
    complete = complete_options(options)
    if credentials is None:
        return grpc.insecure_channel(target, options=complete)
    return grpc.secure_channel(target, credentials, options=complete)


def open_aio_channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    options: Iterable[tuple[str, int | str]] | None = None,
) -> grpc.aio.Channel:
    """Open an asyncio channel; without credentials it is plaintext.

    options: used instead of the defaults of `omni_proto.rpc.options.channel_options`. Options that every channel needs
    are always added.
    """
    complete = complete_options(options)
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=complete)
    return grpc.aio.secure_channel(target, credentials, options=complete)


def pod_options(target: str, options: Iterable[tuple[str, int | str]] | None) -> Options:
    """Returns the options of a channel to one pod of a target: calls and certificates keep the target's name."""
    complete = complete_options(options)
    names = {name for name, _ in complete}
    authority = authority_of(target)
    if not authority or names & {"grpc.default_authority", "grpc.ssl_target_name_override"}:
        return complete
    return (*complete, ("grpc.default_authority", authority))


Channel = TypeVar("Channel")

RENEW_AFTER_S: Final = 2.0
"""Minimum age, in seconds, of a channel that is replaced because a call could not reach its stage."""


@dataclass(slots=True, eq=False)
class Opened(Generic[Channel]):
    """A channel and the number of calls that use it."""

    channel: Channel
    since: float
    """When it was opened: time.monotonic() in seconds."""
    calls: int = 0


@dataclass(slots=True, eq=False)
class Loan(Generic[Channel]):
    """A channel, lent to one call."""

    channel: Channel
    opened: Opened[Channel]
    unreached: bool = False
    """Set by the borrower if the call did not reach its stage: `retry.is_unreached`."""
    over: bool = False
    pod: str = ""
    """Address of the pod; empty if gRPC chooses it."""
    began: float = 0.0
    """When it was lent: time.monotonic() in seconds."""
    messages: int = 0
    """Messages of the answer so far."""
    complete: bool = False
    """Set by the borrower if the call ended with OK."""
    is_fault: bool = False
    """Set by the borrower if the pod itself failed: `retry.is_fault`."""
    report: LoadReport | None = None
    """The report in the call's trailer, if the borrower read one."""


class ChannelPool(Generic[Channel]):
    """Holds the channel for new calls, and replaced channels until their calls have ended. Threads may share it.

    The first call opens the first channel, because a channel of grpc.aio belongs to the event loop that runs then.
    """

    def __init__(self, open_channel: Callable[[], Channel], *, renew_after_s: float = RENEW_AFTER_S) -> None:
        self._open = open_channel
        self._renew_after_s = renew_after_s
        self._lock = threading.Lock()
        self._current: Opened[Channel] | None = None
        self._retired: list[Opened[Channel]] = []
        self.closed = False
        """Whether the pool is closed: no more calls can be made."""

    def take(self) -> Loan[Channel]:
        """Returns a channel for a call; give_back must follow."""
        with self._lock:
            if self._current is None:
                self._current = self._new()
            self._current.calls += 1
            return Loan(self._current.channel, self._current)

    def give_back(self, loan: Loan[Channel]) -> Channel | None:
        """Release a channel after its call has ended. Idempotent.

        Returns a replaced channel that no call uses any more, which the caller must close, or None.
        """
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

    def drop_unused(self) -> Channel | None:
        """Returns the channel for new calls, for the caller to close, or None while calls use it."""
        with self._lock:
            if self.closed or self._current is None or self._current.calls:
                return None
            opened, self._current = self._current, None
            return opened.channel

    def close(self) -> list[Channel]:
        """Close the pool. Returns all its channels, which the caller must close."""
        with self._lock:
            self.closed = True
            retired, self._retired = self._retired, []
            return [opened.channel for opened in (*retired, self._current) if opened is not None]

    def _new(self) -> Opened[Channel]:
        return Opened(self._open(), time.monotonic())
