"""Waiting in a coroutine for states that no event announces: tables, counters, files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return once `holds()` is true. Raises TimeoutError after timeout_s."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what is asked sets no event
            await asyncio.sleep(0.005)
