"""Which failures are retried and after how long, and which calls count as having reached no stage."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from omni_proto.client import OmniRequestError
from omni_proto.rpc.retry import MAX_WAIT_S, Failure, compute_retry_wait_s, is_unreached, may_retry
from omni_proto.rpc.status import STATUS_DETAILS_KEY, RichStatus, read_status, status_of_call

UNAVAILABLE, EXHAUSTED, CANCELLED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
)


def failure(code: grpc.StatusCode, retry_after_s: float | None = None) -> RichStatus:
    return RichStatus(code, "m", retry_after_s=retry_after_s)


RETRIES = {
    "unavailable": (failure(UNAVAILABLE), 1, None, 0.2),
    "second wait is longer": (failure(UNAVAILABLE), 2, None, 0.6),
    "third attempt was the last": (failure(UNAVAILABLE), 3, None, None),
    "hint of unavailable": (failure(UNAVAILABLE, 2.0), 1, None, 2.0),
    "exhausted with hint": (failure(EXHAUSTED, 1.5), 2, 10.0, 1.5),
    "exhausted for good": (failure(EXHAUSTED), 1, None, None),
    "hint beyond the deadline": (failure(EXHAUSTED, 1.5), 1, 1.0, None),
    "hint beyond patience": (failure(EXHAUSTED, MAX_WAIT_S + 1), 1, None, None),
    "backoff beyond the deadline": (failure(UNAVAILABLE), 1, 0.1, None),
    "invalid": (failure(grpc.StatusCode.INVALID_ARGUMENT), 1, None, None),
    "hint of another code": (failure(grpc.StatusCode.INTERNAL, 1.0), 1, None, None),
    "deadline": (failure(grpc.StatusCode.DEADLINE_EXCEEDED), 1, None, None),
    "cancelled by a server that ends": (failure(CANCELLED), 1, None, 0.2),
    "cancelled by a stage": (RichStatus(CANCELLED, "m", reason="CANCELLED"), 1, None, None),
    "a client's error": (OmniRequestError(UNAVAILABLE, "m"), 1, None, 0.2),
}


@pytest.mark.parametrize(("error", "attempt", "left", "wait"), RETRIES.values(), ids=RETRIES.keys())
def test_retry_decisions(error: Failure, attempt: int, left: float | None, wait: float | None) -> None:
    decided = compute_retry_wait_s(error, attempt=attempt, remaining_s=left, jitter=0.0)
    assert decided == (None if wait is None else pytest.approx(wait))


@pytest.mark.parametrize(
    ("error", "left", "wait"),
    [
        pytest.param(failure(UNAVAILABLE, 2.0), 10.0, 2.0, id="as the pipeline asks"),
        pytest.param(failure(UNAVAILABLE), 10.0, 1.0, id="a stage of it is not ready yet"),
        pytest.param(failure(UNAVAILABLE, 2.0), 1.0, None, id="past the deadline"),
        pytest.param(failure(UNAVAILABLE, 2.0), None, None, id="without a deadline"),
        pytest.param(failure(grpc.StatusCode.INVALID_ARGUMENT), 10.0, None, id="what waiting does not help"),
    ],
)
def test_a_pipeline_that_wakes_is_waited_for(error: Failure, left: float | None, wait: float | None) -> None:
    assert compute_retry_wait_s(error, attempt=50, remaining_s=left, jitter=0.0, wakes=True) == wait


def test_jitter_only_lengthens() -> None:
    hinted = compute_retry_wait_s(failure(EXHAUSTED, 2.0), attempt=1, remaining_s=None, jitter=0.99)
    assert hinted is not None
    assert 2.0 <= hinted <= 3.0


def call_error(code: grpc.StatusCode, status: status_pb2.Status | bytes | None = None) -> grpc.aio.AioRpcError:
    data = status if isinstance(status, bytes | None) else status.SerializeToString()
    trailers = grpc.aio.Metadata() if data is None else grpc.aio.Metadata((STATUS_DETAILS_KEY, data))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers)


def test_a_stage_that_refuses_was_reached() -> None:
    refusal = status_pb2.Status(code=UNAVAILABLE.value[0], message="draining")
    assert is_unreached(call_error(UNAVAILABLE))
    assert not is_unreached(call_error(UNAVAILABLE, refusal))
    assert not is_unreached(call_error(CANCELLED))


def test_trailers_that_are_no_status_of_this_call_are_ignored() -> None:
    other = status_pb2.Status(code=EXHAUSTED.value[0])
    assert status_of_call(call_error(UNAVAILABLE, other)) is None
    assert status_of_call(call_error(UNAVAILABLE, b"\x0a\xff")) is None
    assert status_of_call(call_error(EXHAUSTED, other)) == other


def test_of_two_reasons_the_stage_s_own_is_read() -> None:
    """If a status has two ErrorInfos, the one of domain omnipipeline.io is used."""
    status = status_pb2.Status(code=UNAVAILABLE.value[0])
    for domain, reason in (("acme.example", "OTHER"), ("omnipipeline.io", "DRAINING")):
        status.details.add().Pack(error_details_pb2.ErrorInfo(domain=domain, reason=reason))
    read = read_status(status)
    assert (read.reason, read.is_of_a_stage, may_retry(read)) == ("DRAINING", True, True)
    del status.details[1]
    assert (read_status(status).reason, read_status(status).is_of_a_stage) == ("OTHER", False)
