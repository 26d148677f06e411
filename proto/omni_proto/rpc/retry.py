"""Decides when a call is retried: only before Accepted, at most 3 attempts, never past the deadline. Pure.

A pipeline that wakes says NOT_READY. From then on a client repeats its call for as long as its deadline allows, because
the stages do not become ready at the same time.

Clients, and stages that call downstream stages, follow the same rules.
"""

from __future__ import annotations

from typing import Final, Protocol

import grpc

from omni_proto.rpc.status import read_status, status_of_call

MAX_ATTEMPTS: Final = 3
MAX_WAIT_S: Final = 30.0
"""Longest wait in seconds. If the server asks for a longer one, the caller gets the error and decides."""
NOT_READY: Final = "NOT_READY"
"""The reason of a pipeline whose pods start: omni_proto.stage.v1.ErrorReason without its prefix."""
WAKING_WAIT_S: Final = 1.0
"""Seconds between two attempts to call a pipeline that wakes, if it asks for no other pause."""
_FIRST_WAIT_S: Final = 0.2
_FACTOR: Final = 3.0


class Failure(Protocol):
    """The failure of a call: a RichStatus, or a client's OmniRequestError."""

    @property
    def code(self) -> grpc.StatusCode: ...

    @property
    def reason(self) -> str: ...

    @property
    def retry_after_s(self) -> float | None: ...


def may_retry(failure: Failure) -> bool:
    """Returns whether a call that was never accepted may be retried."""
    # CANCELLED without a reason comes from gRPC: a server that shuts down cancels calls that it did not yet handle.
    cancelled = failure.code is grpc.StatusCode.CANCELLED and not failure.reason
    exhausted = failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED and failure.retry_after_s is not None
    return cancelled or exhausted or failure.code is grpc.StatusCode.UNAVAILABLE


def compute_retry_wait_s(
    failure: Failure, *, attempt: int, remaining_s: float | None, jitter: float, wakes: bool = False
) -> float | None:
    """Returns the seconds to wait before the next attempt, or None to give up.

    attempt is the number, from 1, of the attempt that just failed before Accepted. remaining_s is the time to the
    deadline, None without one. The base is RetryInfo's delay; without RetryInfo, 0.2 s after the first attempt and 0.6
    s after the second. jitter, in [0, 1), spreads callers: the wait is 1 to 1.5 times the base. wakes: whether this or
    an earlier attempt met a pipeline that wakes; with a deadline, the number of attempts is then not limited.
    """
    patient = wakes and remaining_s is not None
    if not may_retry(failure) or (attempt >= MAX_ATTEMPTS and not patient):
        return None
    hinted = failure.retry_after_s
    first = WAKING_WAIT_S if patient else _FIRST_WAIT_S * _FACTOR ** (attempt - 1)
    base = hinted if hinted is not None else first
    wait = base * (1 + jitter / 2)
    if base > MAX_WAIT_S or (remaining_s is not None and wait >= remaining_s):
        return None
    return wait


def is_unreached(error: grpc.RpcError) -> bool:
    """Returns whether a call that was never accepted failed before it reached a stage: no connection, or no address."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and status_of_call(error) is None


_FAULTS: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
)


def is_fault(error: grpc.RpcError, stage: str = "") -> bool:
    """Returns whether a failed call says that its pod fails: the connection, or the called stage itself.

    stage: name of the called stage, if known; a failure that it relays from another stage is not its pod's.
    """
    if error.code() not in _FAULTS:
        return False
    status = status_of_call(error)
    return status is None or (bool(stage) and read_status(status).stage == stage)
