"""Waits, by polling, for changes in tables, counters, files and other processes, where nothing signals the change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_EVERY_S = 0.02

# How long tests wait for what should happen, in seconds: a guard against hanging, not a measurement. Machines that run
# the tests may be ten times slower than a developer's.
PATIENCE_S = 120.0


async def until(holds: Callable[[], object], timeout_s: float = PATIENCE_S, why: Callable[[], object] = str) -> None:
    """Waits until `holds()` is true. After `timeout_s`, raises TimeoutError with the result of `why()`."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        _check(deadline, timeout_s, why)
        await asyncio.sleep(_EVERY_S / 4)


def wait_until(holds: Callable[[], object], timeout_s: float = PATIENCE_S, why: Callable[[], object] = str) -> None:
    """Does the same as `until`, for synchronous tests."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        _check(deadline, timeout_s, why)
        time.sleep(_EVERY_S)


def _check(deadline: float, timeout_s: float, why: Callable[[], object]) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"not within {timeout_s:g} s: {why()}")
