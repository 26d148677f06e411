"""How errors become statuses: the code, the reason, whether a client may retry, and which of several errors counts."""

from __future__ import annotations

import grpc
import pytest
from google.rpc import error_details_pb2

from omni_proto import errors as proto_errors
from omni_proto.rpc.retry import may_retry
from omni_proto.rpc.status import read_status
from omni_proto.stage.v1 import errors_pb2
from omni_stage import errors
from omni_stage.service.edges.downstream_protocol import explain_failure
from omni_stage.service.errors import documented_errors, first_error, to_status


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (proto_errors.NonFiniteTensorError("x"), "INVALID_ARGUMENT", "NON_FINITE_TENSOR"),
        (proto_errors.CorruptTensorError.of("x", "crc"), "DATA_LOSS", "CORRUPT_TENSOR"),
        (proto_errors.InvalidTensorError.of("x", "no"), "INVALID_ARGUMENT", "INVALID_TENSOR"),
        (proto_errors.OversizedTensorError.of("x", "no"), "INVALID_ARGUMENT", "INVALID_TENSOR"),
        (proto_errors.WireError("no"), "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
        (proto_errors.EncodeError("no"), "INTERNAL", "INTERNAL"),
        (KeyError("secret"), "INTERNAL", "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_map_in_one_place(error: Exception, code: str, reason: str) -> None:
    status = to_status(error, stage="s", request_id="r")
    told = read_status(status)
    assert told.is_of_a_stage
    assert (status.code, told.reason) == (grpc.StatusCode[code].value[0], reason)
    assert "secret" not in str(status)


def test_every_error_has_a_code_of_grpc_and_a_reason_of_the_protocol() -> None:
    known = {name.removeprefix("ERROR_REASON_") for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    for code, reason in documented_errors() - {("OK", "")}:
        assert hasattr(grpc.StatusCode, code)
        assert reason in known


def test_retry_info_makes_a_refusal_retryable() -> None:
    refused = to_status(errors.TooManyRequestsError("x", retry_after_s=1.5), stage="s", request_id="r")
    assert read_status(refused).retry_after_s == 1.5
    assert may_retry(read_status(refused))
    assert not may_retry(read_status(to_status(errors.RequestTooLargeError("x"), stage="s", request_id="r")))
    assert may_retry(read_status(to_status(errors.DrainingError("x"), stage="s", request_id="r")))
    assert not any(d.Is(error_details_pb2.BadRequest.DESCRIPTOR) for d in refused.details)


def test_first_error_prefers_the_deliberate_one() -> None:
    wanted = errors.ModelExecutionError("x")
    group = BaseExceptionGroup("g", [ValueError("a"), BaseExceptionGroup("h", [wanted])])
    assert first_error(group) is wanted


def test_details_of_a_peer_that_do_not_parse_are_none() -> None:
    damaged = to_status(errors.NotReadyError("no", retry_after_s=1), stage="talker", request_id="r")
    for detail in damaged.details:
        detail.value = b"\x0a\x02\xff\xff\xff"
    read = read_status(damaged)
    assert (read.is_of_a_stage, read.reason, read.retry_after_s) == (False, "", None)
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", b"\x0a\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailers)
    status = explain_failure(error, pipeline="p", stage="talker", request_id="r")
    assert read_status(status).reason == "DOWNSTREAM_UNAVAILABLE"
