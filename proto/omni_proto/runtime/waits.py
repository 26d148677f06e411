"""Makes refused clients wait, with limits on how many wait. Used from one event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable


class Waits:
    """Answers that wait, by client."""

    def __init__(self, in_all: int, per_client: int) -> None:
        """Maximum number of answers that wait, in all and per client."""
        self._in_all = in_all
        self._per_client = per_client
        self._held: Counter[Hashable] = Counter()
        self._over = asyncio.Event()

    def __len__(self) -> int:
        """Returns how many answers wait."""
        return self._held.total()

    def takes(self, client: Hashable) -> bool:
        """Returns whether a further answer to this client may wait."""
        return not self._over.is_set() and len(self) < self._in_all and self._held[client] < self._per_client

    async def hold(self, client: Hashable, wait_s: float) -> None:
        """Wait for wait_s seconds, or until `end` is called."""
        self._held[client] += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._over.wait()
        except TimeoutError:
            return
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]

    def end(self) -> None:
        """End all waits now, and take no further ones."""
        self._over.set()
