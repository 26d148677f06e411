"""How many calls a stage holds, and how many bytes they may use, in the order in which a call takes them:

    CallQuota   a call that has not sent Start, or that is not Generate
    Planners    a large request that is being planned: nothing is reserved for it yet
    Admission   a planned request and its bytes

Bytes are reserved before any chunk is read, by the request's own upper bounds, so later buffers need no bounds of their
own. No request waits for admission: one that does not fit now is refused with RetryInfo.

A request with a priority above 0 is refused once three quarters of a limit are in use; the last quarter is for other
requests. Otherwise priority has no effect here: it decides the order of requests in the engine's queue.

A client that holds half of a limit may not take the last eighth of it while others call too, so that one client's
requests do not lock out the others. A client that is alone may use everything. In the engine's queue, a request stands
as if it had arrived later by a second for each request that its client holds: so a caller with one request passes most
of a caller's fifty, each client's own requests keep their order, and none waits for later ones for more than that time.
The engine leaves an eighth of its places to others in the same way (vllm_adapter/scheduling/last_places.py).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from omni_proto.runtime.limits import USERS, Client, PeerTable
from omni_stage.errors import ByteBudgetExceededError, RequestTooLargeError, TooManyRequestsError
from omni_stage.vllm_adapter.scheduling.last_places import FOR_OTHERS, LARGE_SHARE, LATE_S, OTHERS_S
from omni_stage.vllm_adapter.scheduling.sessions import YIELDING_SHARE

MIN_START_SLOTS = 8
"""Minimum number of slots for calls that send their Start, however small the byte budget is. max_requests applies if
it is less."""
START_GRACE_S = 0.5
"""Seconds after which a call without Start needs a slot. Before that, a call can hold only what its client sent in
half a second. Start mostly arrives together with the call, even with hundreds of calls at a time."""
GRACE_STEPS = 5
"""Number of timers that START_GRACE_S is divided into. Each starts when the previous one has fired, so that a delayed
event loop does not shorten the time that a call gets."""
PLANNING_THREADS: Final = 2

MEDIA_SHARE = 0.75
"""Share of the stage's bytes that media may fill; the rest stays free for text."""
RETRY_AFTER_S = 1.0
_T = TypeVar("_T")


@dataclass(eq=False, slots=True)
class CallSlot:
    """A call's slot."""

    client: Client
    end: Callable[[], None]
    """Ends the call."""
    evicted: bool = False
    """Whether the call lost its slot to another call, or got none because its peer holds per_peer slots."""
    timer: asyncio.TimerHandle | None = None
    """The timer of a call that does not need a slot yet."""


class CallQuota:
    """Slots of one kind of calls, in one event loop. A call holds a slot while it may use the server's memory.

    A peer with many calls cannot lock others out: when all slots are taken, the peer with the most slots loses one, and
    of its users the one with the most, which loses its oldest call. A peer that invents users gains nothing.
    """

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
    def hold(self, client: Client, end: Callable[[], None], *, after_s: float = 0.0) -> Iterator[CallSlot]:
        """Take a slot after_s seconds after the context is opened, and hold it until the context is closed.

        Calls `end` when the slot is lost to another call. If the peer holds per_peer slots when this slot is to be
        taken: raises TooManyRequestsError if after_s is 0, else calls `end`.
        """
        slot = CallSlot(client, end)
        if after_s:
            self._take_late(slot, after_s / GRACE_STEPS, GRACE_STEPS)
        else:
            self._take(slot)
        try:
            yield slot
        finally:
            if slot.timer is not None:
                slot.timer.cancel()
            self._table.remove(client.address, slot)

    def _take_late(self, slot: CallSlot, step_s: float, steps: int) -> None:
        if steps:
            again = (slot, step_s, steps - 1)
            slot.timer = asyncio.get_running_loop().call_later(step_s, self._take_late, *again)
            return
        try:
            self._take(slot)
        except TooManyRequestsError:
            self._end(slot)

    def _take(self, slot: CallSlot) -> None:
        peer = slot.client.address
        if self._per_peer is not None and self._table.held_by(peer) >= self._per_peer:
            raise self.refusal(f"{self._per_peer} per address")
        if len(self._table) >= self.in_all:
            holder = self._table.largest()
            held = list(self._table.members_of(holder))
            most = Counter(one.client for one in held).most_common(1)[0][0]
            victim = next(one for one in held if one.client == most)
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


class Planners:
    """Threads that plan large requests before admission, and check media headers after it. Used from one event loop."""

    def __init__(self, max_planning: int) -> None:
        """max_planning: maximum number of requests that are being planned or wait to be planned."""
        self._max_planning = max_planning
        self._planning = 0
        # A request waits for a thread here, and not in the executor: the executor would keep a cancelled request in its
        # queue until the request's turn.
        self._free = asyncio.Semaphore(PLANNING_THREADS)
        self._threads = ThreadPoolExecutor(PLANNING_THREADS, "plan")

    async def plan(self, function: Callable[[], _T]) -> _T:
        """Returns the result of a function that plans a request. Raises TooManyRequestsError if too many wait.

        A caller that is cancelled while the function runs still waits until the function ends.
        """
        if self._planning >= self._max_planning:
            raise TooManyRequestsError(
                f"the stage plans at most {self._max_planning} large requests at a time; retry later",
                limit=f"{self._max_planning} requests being planned",
                retry_after_s=RETRY_AFTER_S,
            )
        self._planning += 1
        try:
            async with self._free:
                running = asyncio.get_running_loop().run_in_executor(self._threads, function)
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    # The thread uses the request's memory until it has ended.
                    await asyncio.wait([running])
                    raise
        finally:
            self._planning -= 1

    async def check(self, function: Callable[..., _T], *args: Any) -> _T:
        """Returns the result of a function that checks an admitted request. It waits for at most two plans."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def shutdown(self) -> None:
        """Start no further function."""
        self._threads.shutdown(wait=False)


class Admission:
    """Counts requests and bytes of one stage. Used from one event loop."""

    def __init__(self, max_requests: int, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: monotonic seconds."""
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self._clock = clock
        self._requests_of: Counter[Client] = Counter()
        self._bytes_of: Counter[Client] = Counter()
        self._callers = (_LastCallers(), _LastCallers())
        self._newest: dict[Client, float] = {}
        """Of each client with requests: when its newest one counts as arrived."""
        self.requests = 0
        self.bytes = 0
        self.media_bytes = 0
        """The part of `bytes` that media hold."""

    @contextmanager
    def admit(
        self, needed_bytes: int, *, media_bytes: int = 0, priority: int = 0, client: Client | None = None
    ) -> Iterator[float]:
        """Reserve one request and needed_bytes while the context is open. Returns StageRequest.late_s.

        `client`: whose request it is; None for a stage's, which acts for many clients. `media_bytes`: the part of
        needed_bytes that media need. The media of all requests may reserve at most MEDIA_SHARE of the stage's bytes. A
        request with a priority above 0 is admitted only if all requests, including this one, then fill at most
        YIELDING_SHARE of each limit. While no other request has reserved bytes, it may itself reserve up to max_bytes.

        Raises RequestTooLargeError (no retry helps), TooManyRequestsError and ByteBudgetExceededError (with RetryInfo).
        """
        if needed_bytes > self.max_bytes:
            raise RequestTooLargeError(
                f"the request may need {needed_bytes} bytes of tensors and media, over the stage's limit of "
                f"{self.max_bytes}; lower max_tokens, shorten the input or raise limits.maxInflightBytes",
                limit=f"{self.max_bytes} bytes",
            )
        media_limit = int(self.max_bytes * MEDIA_SHARE)
        if media_bytes > media_limit:
            raise RequestTooLargeError(
                f"the request's media may need {media_bytes} bytes, over the stage's limit of {media_limit} for media "
                f"(three quarters of limits.maxInflightBytes); send fewer or smaller ones, or raise that limit",
                field="start.chat",
                limit=f"{media_limit} bytes",
            )
        # Of the client, and of the user among a client's: a key of the gateway, or an address in front of it.
        holders = () if client is None else (Client(client.address), client) if client.user else (client,)
        for callers, holder in zip(self._callers, holders, strict=False):
            callers.note(holder, self._clock())
        request_limit, why = self._limit(holders, self.max_requests, self._requests_of, priority)
        if self.requests >= request_limit:
            raise TooManyRequestsError(
                f"the stage has {self.requests} requests, its limit (limits.maxConcurrentRequests{why}); retry later",
                limit=f"{request_limit} requests",
                retry_after_s=RETRY_AFTER_S,
            )
        byte_limit, why = self._limit(holders, self.max_bytes, self._bytes_of, priority if self.bytes else 0)
        if needed_bytes and self.bytes + needed_bytes > byte_limit:
            raise ByteBudgetExceededError(
                f"the request may need {needed_bytes} bytes; {self.bytes} of {byte_limit} are in use{why}; retry later",
                limit=f"{byte_limit} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        if media_bytes and self.media_bytes + media_bytes > media_limit:
            raise ByteBudgetExceededError(
                f"the request's media may need {media_bytes} bytes; {self.media_bytes} of {media_limit} for media are "
                "taken; retry later",
                limit=f"{media_limit} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        self.requests += 1
        self.bytes += needed_bytes
        self.media_bytes += media_bytes
        late_s = 0.0 if client is None else self._late_s(client)
        for holder in holders:
            self._requests_of[holder] += 1
            self._bytes_of[holder] += needed_bytes
        try:
            yield late_s
        finally:
            self.requests -= 1
            self.bytes -= needed_bytes
            self.media_bytes -= media_bytes
            for holder in holders:
                self._requests_of[holder] -= 1
                self._bytes_of[holder] -= needed_bytes
                if not self._requests_of[holder]:
                    del self._requests_of[holder], self._bytes_of[holder]
                    self._newest.pop(holder, None)

    def _late_s(self, client: Client) -> float:
        """Returns the seconds for a client's new request. Each client's requests keep their order."""
        now, held = self._clock(), self._requests_of[client]
        if client.user:
            held = max(held, self._requests_of[Client(client.address)] // USERS)
        at = max(now + held * LATE_S, self._newest.get(client, -math.inf))
        self._newest[client] = at
        return at - now

    def _limit(
        self, holders: tuple[Client, ...], maximum: int, held: Counter[Client], priority: int
    ) -> tuple[int, str]:
        """Returns how much all requests, with this one, may use of a limit, and why not all of it."""
        limit, why = maximum, ""
        now = self._clock()
        for callers, holder in zip(self._callers, holders, strict=False):
            # Less than one request's share cannot be left free.
            if held[holder] >= maximum * LARGE_SHARE and maximum >= 1 / FOR_OTHERS and callers.has_other(holder, now):
                limit, why = maximum - int(maximum * FOR_OTHERS), _FOR_OTHERS
        if priority > 0:
            limit, why = min(limit, max(1, int(maximum * YIELDING_SHARE))), _YIELDING
        return limit, why


_YIELDING = ", of which a priority above 0 may fill three quarters"
_FOR_OTHERS = ", of which a client with half may not take the last eighth while others call"


class _LastCallers:
    """When the last caller called, and when one that is not the same did."""

    def __init__(self) -> None:
        self._last: Client | None = None
        self._at = self._other_at = -math.inf

    def note(self, client: Client, now: float) -> None:
        if client != self._last:
            self._other_at, self._last = self._at, client
        self._at = now

    def has_other(self, client: Client, now: float) -> bool:
        """Returns whether another one than this client called within OTHERS_S seconds."""
        return now - (self._other_at if client == self._last else self._at) <= OTHERS_S
