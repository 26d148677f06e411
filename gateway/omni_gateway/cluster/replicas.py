"""Counts the ready replicas of this gateway, which share the limits of keys.

The DNS name of a headless Service resolves to the addresses of all ready pods. A look-up needs no permissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from omni_gateway.telemetry import GatewayMetrics

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""Pause between two look-ups, in seconds. The cluster's DNS may cache an answer for longer: 30 s in the usual
configuration of CoreDNS."""
ASK_S: Final = 4.0
"""Timeout of a look-up, in seconds."""

Resolve = Callable[[str], Awaitable[Counter[int]]]
"""Returns the number of addresses of a name, by address family. Raises OSError."""


async def count_addresses(name: str) -> Counter[int]:
    """Returns the number of addresses of a name, by address family. Raises OSError."""
    found: list[Any] = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return Counter(family for family, address in {(one[0], one[4][0]) for one in found})


class ReadyReplicas:
    """The number of replicas behind a DNS name, which is resolved repeatedly while `run` is open."""

    def __init__(self, name: str, assumed: int, resolve: Resolve = count_addresses, every_s: float = CHECK_S) -> None:
        """assumed: the number of replicas until the name has been resolved once."""
        self._name = name
        self._count = assumed
        self._resolve = resolve
        self._every_s = every_s
        self._failing = False

    def count(self) -> int:
        """Returns the number of replicas in the last DNS answer, at least 1; before the first answer, the assumed
        number."""
        return self._count

    @asynccontextmanager
    async def run(self, metrics: GatewayMetrics) -> AsyncGenerator[None, None]:
        """Keep the number up to date while the block is open."""
        task = asyncio.create_task(self._keep_asking(metrics))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _keep_asking(self, metrics: GatewayMetrics) -> None:
        while True:
            await self._ask()
            metrics.replicas.set(self._count)
            await asyncio.sleep(self._every_s)

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                by_family = await self._resolve(self._name)
        except OSError as error:  # TimeoutError is one
            if not self._failing:
                reason = str(error) or type(error).__name__
                log.warning("the replicas cannot be counted, the last number stays", extra={"reason": reason})
            self._failing = True
            return
        # In a dual-stack cluster each pod has an address of each family, so take the larger number and not the sum.
        found = max(1, max(by_family.values(), default=0))
        if found != self._count or self._failing:
            log.info("counted the ready replicas", extra={"replicas": found})
        self._count, self._failing = found, False
