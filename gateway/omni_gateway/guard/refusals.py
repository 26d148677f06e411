"""Slows down clients whose requests are refused again and again.

    refused request -> its cost is taken from its client's bucket -> answered at once; while that is overdrawn, later

A refused request costs the client nothing, and the gateway's one event loop up to a fifth of a second for a large body.
A client that sends such requests in a loop would take the loop from all others. So what a client's refused requests
cost is limited to SHARE of the loop. Only two things wait: further refusals, and further large bodies, which are read
one after another. Requests that are small and right are served as before, also those of the same client.

A client is an API key, or an address where the request has no key. Use from one event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from omni_proto.runtime.limits import BucketTable, TokenBucket
from omni_proto.runtime.waits import Waits

SHARE: Final = 0.05
"""Share of the event loop's time that the refused requests of one client may take."""
BURST_S: Final = 0.25
"""Work in seconds that a client's refused requests may take at once, before any waits."""
MOST_OWED_S: Final = 1.5
"""Maximum work in seconds by which a client's bucket is overdrawn, so that after 30 s without refusals none waits."""
MAX_WAIT_S: Final = 5.0
"""Longest wait of a refusal. Libraries retry refused requests, and most give up after minutes only."""
MIN_JITTER: Final = 0.8
"""Shortest wait as a share of the longest, so that requests that were refused together do not return together."""
REQUEST_S: Final = 0.004
BYTES_PER_S: Final = 256 << 20
"""Cost of a refused request: REQUEST_S, and that of the bytes that it counted towards maxHeldBytes, each JSON value
included. About as measured; the true cost would depend on what else the machine does."""
LARGE_BYTES: Final = 64 << 10
"""A body of more bytes waits while its client's bucket is overdrawn."""
CLIENTS: Final = 4096
HELD_IN_ALL, HELD_PER_CLIENT = 512, 128
"""Maximum number of refusals that wait, in all and per client; further ones are answered at once. They hold neither a
body nor a place of maxRequests."""


class Refusals:
    """What the refused requests of each client have cost."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random
    ) -> None:
        """clock: monotonic seconds. jitter: returns a number from 0 to 1."""
        self._clock = clock
        self._jitter = jitter
        self._buckets = BucketTable(CLIENTS)
        self._waits = Waits(HELD_IN_ALL, HELD_PER_CLIENT)

    def charge(self, client: str, size: int) -> float:
        """Count a refused request that counted `size` bytes. Returns for how many seconds its answer should wait."""
        bucket = self._bucket(client)
        bucket.level = max(bucket.level - cost_s(size), -MOST_OWED_S)
        if bucket.level >= 0 or not self._waits.takes(client):
            return 0.0
        return min(MAX_WAIT_S, -bucket.level / SHARE) * (MIN_JITTER + (1 - MIN_JITTER) * self._jitter())

    async def hold(self, client: str, wait_s: float) -> None:
        """Wait before a refusal is sent."""
        await self._waits.hold(client, wait_s)

    async def pay(self, client: str, size: int) -> int:
        """Wait until a body of `size` bytes may be read. Returns for how many of them its client has already paid: 0,
        without a wait, unless the bucket is overdrawn."""
        bucket, paid = self._bucket(client), 0
        while bucket.level < 0:
            paid = size
            await asyncio.sleep(-bucket.level / SHARE)
            bucket = self._bucket(client)
        if paid:
            bucket.level -= cost_s(paid)
        return paid

    def refund(self, client: str, size: int) -> None:
        """Give back what was paid for a body, because it was not refused or is charged now."""
        if size:
            self._bucket(client).level += cost_s(size)

    def _bucket(self, client: str) -> TokenBucket:
        return self._buckets.refilled(client, SHARE, BURST_S, self._clock())


def cost_s(size: int) -> float:
    """Returns what a refused request that counted `size` bytes is taken to have cost, in seconds of the loop."""
    return REQUEST_S + size / BYTES_PER_S
