"""Delays refusals: a client whose calls are often refused must wait for its further refusals.

    refused call -> takes a token from its client's bucket -> answered immediately; if the bucket is empty, held first

A refused call costs the stage server milliseconds, mostly for parsing, and costs the client nothing. A client that
sends such calls in a loop would take most of a core from all others. Holding back its refusals slows that loop down.
Only refusals wait. The client's other calls, and those of other clients with the same address, are served as before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

import grpc
import prometheus_client

from omni_proto.runtime.limits import USERS, BucketTable, Client
from omni_proto.runtime.waits import Waits
from omni_proto.stage_config import Limits
from omni_stage.errors import PrepareTimeoutError

REFUSALS_PER_SECOND: Final = 10
MAX_WAIT_S: Final = 1.0
BURST_S: Final = 5.0
"""Size of a bucket, in seconds of its rate. A client may use up the bucket in one burst before a refusal waits."""
CLIENTS: Final = 4096
"""Maximum number of buckets. When there are more, the bucket that was used least recently is dropped."""
HELD_IN_ALL, HELD_PER_CLIENT = 512, 128
"""Maximum number of refusals that wait, in all and per client; further ones are answered immediately. A held call uses
neither a slot nor reserved bytes."""
EARLY_S: Final = 0.5
"""A call that its client cancels, or whose deadline passes, within this many seconds counts as refused: it costs
the stage as much. Its own status is not held back, because the client does not wait for it."""
MIN_JITTER: Final = 0.8
"""Shortest wait as a share of the longest, so that clients that were refused together do not return together."""
SPARE_S: Final = 0.05
"""A held call is answered at the latest this many seconds before its deadline."""

_REFUSED: Final = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DATA_LOSS,
    )
)
_LEFT: Final = frozenset((grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED))
_SLOW_MEDIA: Final = PrepareTimeoutError.reason


class RefusalBuckets:
    """A token bucket of refusals for each client. Pure, except for the given clock. Used from one thread."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: monotonic seconds."""
        self._per_second = per_second
        self._clock = clock
        self._buckets = BucketTable(CLIENTS)

    def __len__(self) -> int:
        return len(self._buckets)

    def charge(self, client: Client) -> bool:
        """Count a refusal. Returns whether the client is within its rate.

        Each user that a client names has the rate of one client. All users of a client together have USERS times that
        rate. The names are not verified, so this second bound limits a client that invents a new name for each call.
        """
        if not self._take((client.address, client.user), self._per_second):
            return False
        return not client.user or self._take((client.address, None), self._per_second * USERS)

    def _take(self, key: tuple[str, str | None], per_second: float) -> bool:
        return self._buckets.refilled(key, per_second, per_second * BURST_S, self._clock()).take()


class HeldRefusals:
    """Makes refusals wait. Used from one event loop."""

    def __init__(
        self,
        limits: Limits,
        count: prometheus_client.Counter,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """count: counts refusals that waited. jitter: returns a number from 0 to 1."""
        rate, wait_s = limits.refusals_per_second, limits.max_refusal_wait
        self._buckets = RefusalBuckets(REFUSALS_PER_SECOND if rate is None else rate, clock)
        self._max_wait_s = MAX_WAIT_S if wait_s is None else wait_s
        self._count = count
        self._jitter = jitter
        self._waits = Waits(HELD_IN_ALL, HELD_PER_CLIENT)

    def __len__(self) -> int:
        """Returns how many refusals wait."""
        return len(self._waits)

    def charge(self, client: Client, code: grpc.StatusCode, reason: str, seconds: float) -> float:
        """Count a call that ended after `seconds`. Returns for how many seconds its status should wait, mostly 0."""
        left_early = code in _LEFT and seconds < EARLY_S
        if not (left_early or code in _REFUSED or reason == _SLOW_MEDIA):
            return 0.0
        within_rate = self._buckets.charge(client)
        if within_rate or left_early:
            return 0.0
        return self._max_wait_s * (MIN_JITTER + (1 - MIN_JITTER) * self._jitter())

    async def hold(self, client: Client, wait_s: float, remaining_s: float | None) -> None:
        """Wait for wait_s seconds, but at most until SPARE_S seconds before the call's deadline.

        remaining_s: seconds until that deadline; None if the call has none. Returns immediately if too many calls wait
        already. The wait also ends when `end` is called, and when the client disconnects, because gRPC then cancels the
        task.
        """
        if remaining_s is not None:
            wait_s = min(wait_s, remaining_s - SPARE_S)
        if wait_s <= 0 or not self._waits.takes(client):
            return
        self._count.inc()
        await self._waits.hold(client, wait_s)

    def end(self) -> None:
        """Answer all held refusals now and hold no further ones: the stage shuts down."""
        self._waits.end()
