"""Deadlines of calls."""

from __future__ import annotations

import math

from omni_proto.errors import ArgumentError


def check_timeout(timeout: float | None) -> float | None:
    """Returns timeout unchanged. Raises ArgumentError unless it is None or a positive number of seconds."""
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ArgumentError(f"timeout must be a positive number of seconds or None, got {timeout}")
    return timeout


def remaining_s(deadline: float | None, now: float) -> float | None:
    """Returns the seconds from now to a deadline of the same clock: 0 after the deadline, None without one."""
    return None if deadline is None else max(0.0, deadline - now)
