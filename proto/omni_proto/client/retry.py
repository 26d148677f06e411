"""When to try again: only before Accepted, at most 3 attempts, never past the deadline. Pure."""

from __future__ import annotations

from typing import Final

import grpc

from omni_proto.client.errors import OmniRequestError

MAX_ATTEMPTS: Final = 3
MAX_WAIT_S: Final = 30.0
"""A server that asks for a longer pause is better answered by the caller."""
_FIRST_WAIT_S: Final = 0.2
_FACTOR: Final = 3.0


def compute_retry_wait_s(
    error: OmniRequestError, *, attempt: int, remaining_s: float | None, jitter: float
) -> float | None:
    """Seconds to wait before the next attempt; None: give up.

    attempt counts from 1 and has just failed before Accepted. remaining_s is the time to the deadline, None without
    one. jitter, in [0, 1), spreads callers: waits are 1 to 1.5 times the base. RetryInfo is the least wait.
    """
    if attempt >= MAX_ATTEMPTS:
        return None
    hinted = error.retry_after_s
    # Without a reason it is gRPC's own: a server that shuts down cancels calls that came too late to be refused.
    cancelled = error.code is grpc.StatusCode.CANCELLED and not error.reason
    unavailable = cancelled or error.code is grpc.StatusCode.UNAVAILABLE
    exhausted = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and hinted is not None
    if not (unavailable or exhausted):
        return None
    base = hinted if hinted is not None else _FIRST_WAIT_S * _FACTOR ** (attempt - 1)
    wait = base * (1 + jitter / 2)
    if base > MAX_WAIT_S or (remaining_s is not None and wait >= remaining_s):
        return None
    return wait
