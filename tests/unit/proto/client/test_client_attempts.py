"""Attempts, with which both Python clients decide whether to retry a request. No connection, and a fake clock."""

from __future__ import annotations

import grpc
import pytest

from omni_proto.client import Accepted, OmniRequestError, ProtocolError, TextDelta
from omni_proto.client.attempts import Attempts
from omni_proto.stage.v1 import events_pb2
from omni_proto.stage.v1.stage_service_pb2 import GenerateResponse
from support.tables import each_row

ACCEPTED = GenerateResponse(stage="s", accepted=events_pb2.Accepted(request_id="r", accepted_unix_ns=1))
TEXT = GenerateResponse(stage="s", text=events_pb2.TextDelta(text="hi"))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def failed(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


def attempts(timeout_s: float | None = None, clock: Clock | None = None) -> Attempts:
    return Attempts(timeout_s, clock=clock or Clock(), draw=lambda: 0.0)


def test_three_attempts_share_one_deadline() -> None:
    clock = Clock()
    request = attempts(10.0, clock)
    assert request.begin() == 10.0
    clock.now += 4
    assert request.fail(failed(), closed=False) == pytest.approx(0.2)
    assert request.begin() == 6.0
    assert request.fail(failed(), closed=False) == pytest.approx(0.6)
    clock.now += 7
    assert request.begin() == 0.0
    with pytest.raises(OmniRequestError):
        request.fail(failed(), closed=False)
    assert attempts().begin() is None


def test_nothing_is_tried_again_once_accepted_or_closed() -> None:
    request = attempts()
    request.begin()
    assert request.take(ACCEPTED) == Accepted("s", "r", 1)
    assert request.take(TEXT) == TextDelta("s", "hi")
    assert not request.is_unreached(failed())
    with pytest.raises(OmniRequestError):
        request.fail(failed(), closed=False)
    other = attempts()
    other.begin()
    assert other.is_unreached(failed())
    with pytest.raises(OmniRequestError):
        other.fail(failed(), closed=True)


def test_a_new_attempt_must_be_accepted_again() -> None:
    """A new attempt must be accepted again before it may receive text."""
    request = attempts()
    request.begin()
    request.take(ACCEPTED)
    request.begin()
    assert not request.accepted
    with pytest.raises(ProtocolError, match="text came before accepted"):
        request.take(TEXT)


@pytest.mark.parametrize("response", [None, GenerateResponse(), TEXT], ids=["damaged", "empty", "text"])
def test_what_may_not_come_first(response: GenerateResponse | None) -> None:
    """A first message that is damaged, empty or not Accepted raises a ProtocolError."""
    request = attempts()
    request.begin()
    with pytest.raises(ProtocolError):
        request.take(response)


def test_a_call_that_ends_well_must_have_been_accepted() -> None:
    request = attempts()
    request.begin()
    with pytest.raises(ProtocolError, match="without accepted"):
        request.finish()
    request.take(ACCEPTED)
    request.finish()


@each_row("accepted", [False, True])
@each_row(
    "code, details",
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, ""),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer"),
        (grpc.StatusCode.UNAVAILABLE, "GOAWAY received"),
        (grpc.StatusCode.UNAVAILABLE, "DNS resolution failed for entry:50051: C-ares status is not ARES_SUCCESS"),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: Connection refused"),
        (grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
        (grpc.StatusCode.CANCELLED, "RST_STREAM with error code 8"),
    ],
)
def test_a_lost_connection_is_unavailable_and_names_the_stage(
    code: grpc.StatusCode, details: str, accepted: bool
) -> None:
    request = Attempts(None, target="entry.ns.svc:50051", clock=Clock(), draw=lambda: 0.0)
    for _ in range(3):
        request.begin()
    if accepted:
        request.take(ACCEPTED)
    lost = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)
    with pytest.raises(OmniRequestError, match=r"entry\.ns\.svc:50051") as caught:
        request.fail(lost, closed=False)
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert (caught.value.stage, "stage 's'" in str(caught.value)) == (("s", True) if accepted else ("", False))
    assert details in str(caught.value)


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED])
def test_other_failures_keep_their_code(code: grpc.StatusCode) -> None:
    request = attempts()
    request.begin()
    request.take(ACCEPTED)
    with pytest.raises(OmniRequestError) as caught:
        request.fail(
            grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "Exception iterating"), closed=False
        )
    assert (caught.value.code, caught.value.stage) == (code, "s")
