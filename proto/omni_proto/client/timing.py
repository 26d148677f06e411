"""Deadlines of calls."""

from __future__ import annotations

import math
from typing import Final

from omni_proto.errors import ArgumentError

LONGEST_S: Final = 1e9
"""Timeouts above this are shortened to it, because gRPC's clock overflows at about 7e9 s and the call then fails."""


def check_timeout(timeout: float | None) -> float | None:
    """Returns timeout, at most LONGEST_S. Raises ArgumentError unless it is None or a positive number of seconds."""
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise ArgumentError(f"timeout must be a positive number of seconds or None, got {timeout}")
    return None if timeout is None else min(timeout, LONGEST_S)


def remaining_s(deadline: float | None, now: float) -> float | None:
    """Returns the seconds from now to a deadline of the same clock: 0 after the deadline, None without one."""
    return None if deadline is None else max(0.0, deadline - now)
