"""Waits for states that no event announces: tables, counters, files, other processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_EVERY_S = 0.02


async def until(holds: Callable[[], object], timeout_s: float = 60.0, why: Callable[[], object] = str) -> None:
    """Return once `holds()` is true. Raises TimeoutError with what `why()` says, after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        _check(deadline, timeout_s, why)
        await asyncio.sleep(_EVERY_S / 4)


def wait_until(holds: Callable[[], object], timeout_s: float = 60.0, why: Callable[[], object] = str) -> None:
    """As `until`, for tests that block."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        _check(deadline, timeout_s, why)
        time.sleep(_EVERY_S)


def _check(deadline: float, timeout_s: float, why: Callable[[], object]) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"not within {timeout_s:g} s: {why()}")
