"""Bounds the calls that are not admitted: Generate calls that have not sent Start yet, and calls other than Generate.

A call holds a slot while it may use the server's memory. A peer with many calls cannot lock others out: when all
slots are taken, the oldest call of the peer with the most slots is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from omni_proto.runtime.limits import PeerTable
from omni_stage.errors import TooManyRequestsError
from omni_stage.service.guard.admission import RETRY_AFTER_S

MIN_START_SLOTS = 8
"""Minimum number of slots for calls that send their Start, however small the byte budget is. max_requests applies if
it is less."""
START_GRACE_S = 0.5
"""Seconds after which a call without Start needs a slot. Before that, a call can hold only what its client sent in
half a second. Start mostly arrives together with the call, even with hundreds of calls at a time."""
GRACE_STEPS = 5
"""Number of timers that START_GRACE_S is divided into. Each starts when the previous one has fired, so that a delayed
event loop does not shorten the time that a call gets."""


@dataclass(eq=False, slots=True)
class CallSlot:
    """A call's slot."""

    end: Callable[[], None]
    """Ends the call."""
    evicted: bool = False
    """Whether the call lost its slot to another call, or got none because its peer holds per_peer slots."""
    timer: asyncio.TimerHandle | None = None
    """The timer of a call that does not need a slot yet."""


class CallQuota:
    """Slots of one kind of calls, in one event loop."""

    def __init__(self, what: str, in_all: int, per_peer: int | None = None) -> None:
        """what: the name of such calls in errors. in_all: number of slots. per_peer: maximum number of slots of one
        peer. With None, one peer may hold all slots until another peer needs one."""
        self._what = what
        self.in_all = in_all
        self._per_peer = per_peer
        self._table: PeerTable[CallSlot] = PeerTable()

    def __len__(self) -> int:
        return len(self._table)

    @contextmanager
    def hold(self, peer: str, end: Callable[[], None], *, after_s: float = 0.0) -> Iterator[CallSlot]:
        """Take a slot after_s seconds after the context is opened, and hold it until the context is closed.

        Calls `end` when the slot is lost to another call. If the peer holds per_peer slots when this slot is to be
        taken: raises TooManyRequestsError if after_s is 0, else calls `end`.
        """
        slot = CallSlot(end)
        if after_s:
            self._take_late(peer, slot, after_s / GRACE_STEPS, GRACE_STEPS)
        else:
            self._take(peer, slot)
        try:
            yield slot
        finally:
            if slot.timer is not None:
                slot.timer.cancel()
            self._table.remove(peer, slot)

    def _take_late(self, peer: str, slot: CallSlot, step_s: float, steps: int) -> None:
        if steps:
            again = (peer, slot, step_s, steps - 1)
            slot.timer = asyncio.get_running_loop().call_later(step_s, self._take_late, *again)
            return
        try:
            self._take(peer, slot)
        except TooManyRequestsError:
            self._end(slot)

    def _take(self, peer: str, slot: CallSlot) -> None:
        if self._per_peer is not None and self._table.held_by(peer) >= self._per_peer:
            raise self.refusal(f"{self._per_peer} per address")
        if len(self._table) >= self.in_all:
            holder = self._table.largest()
            victim = self._table.oldest_of(holder)
            self._table.remove(holder, victim)
            self._end(victim)
        self._table.add(peer, slot)

    @staticmethod
    def _end(slot: CallSlot) -> None:
        slot.evicted = True
        # A call whose own timeout has just expired is ending already. Its asyncio.Timeout cannot be rescheduled.
        with suppress(RuntimeError):
            slot.end()

    def refusal(self, limit: str = "") -> TooManyRequestsError:
        """Returns the error for a call that gets no slot or has lost it."""
        return TooManyRequestsError(
            f"the stage has reached its limit of {self._what} ({limit or self.in_all}); retry later",
            limit=f"{limit or self.in_all} {self._what}",
            retry_after_s=RETRY_AFTER_S,
        )


def peer_address(peer: str) -> str:
    """Returns the address in gRPC's name of a peer, without its port: `ipv4:10.0.0.7:41234` -> `10.0.0.7`."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer


def count_start_slots(max_requests: int, max_bytes: int, max_message_bytes: int) -> int:
    """Returns the number of slots for calls that send their Start: as many as fit into half of the byte budget, but at
    least MIN_START_SLOTS and at most max_requests.

    A Start may be as large as the largest message, and is in memory before any bytes are reserved for it.
    """
    return min(max_requests, max(MIN_START_SLOTS, max_bytes // 2 // max_message_bytes))
