"""The pure parts: media, deadlines, health verdicts, statuses, downstream protocol, logs, metadata."""

from __future__ import annotations

import json
import logging
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from omni_proto import errors as proto_errors
from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_stage import errors
from omni_stage.engine.byte_budget import parse_cgroup_limit, parse_memory_total
from omni_stage.errors import DeadlineExceededError, DownstreamProtocolError
from omni_stage.service.call_metadata import forwarded_metadata, request_id_of
from omni_stage.service.deadlines import Deadline, downstream_timeout
from omni_stage.service.edges.downstream_protocol import DownstreamProtocol, is_retryable, status_of_call
from omni_stage.service.errors import error_info, first_error, retry_delay_s, to_status
from omni_stage.service.logs import JsonFormatter, TextFormatter, request_id_var
from omni_stage.service.server.watchdog import Verdict, judge


def test_details_of_a_peer_that_do_not_parse_are_none() -> None:
    damaged = to_status(errors.NotReadyError("no", retry_after_s=1), stage="talker", request_id="r")
    for detail in damaged.details:
        detail.value = b"\x0a\x02\xff\xff\xff"
    assert error_info(damaged) is None
    assert retry_delay_s(damaged) is None
    trailers = grpc.aio.Metadata(("grpc-status-details-bin", b"\x0a\xff"))
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailers)
    status, _ = status_of_call(error, stage="talker", request_id="r")
    assert error_info(status).reason == "DOWNSTREAM_UNAVAILABLE"


@pytest.mark.parametrize(
    ("remaining", "expected"),
    [pytest.param(10.0, 9.8, id="2 percent"), pytest.param(1.0, 0.95, id="50 ms")],
)
def test_deadline_shrinks(remaining: float, expected: float) -> None:
    assert downstream_timeout(remaining, "b") == pytest.approx(expected)


def test_deadline_too_short_to_call() -> None:
    with pytest.raises(DeadlineExceededError):
        downstream_timeout(0.05, "b")
    assert Deadline.of_call(None, 300, 10).remaining(20) == 290
    assert Deadline.of_call(5, 300, 10).remaining(20) == -5
    assert Deadline.of_call(1e9, 300, 10).remaining(20) == 290


@pytest.mark.parametrize(
    ("is_dead", "unfinished", "age", "verdict"),
    [
        pytest.param(False, 0, 99, Verdict.HEALTHY, id="idle is never stuck"),
        pytest.param(False, 1, 29, Verdict.HEALTHY, id="slow"),
        pytest.param(False, 1, 31, Verdict.STUCK, id="stuck"),
        pytest.param(True, 0, 0, Verdict.DEAD, id="dead"),
    ],
)
def test_watchdog_verdicts(is_dead: bool, unfinished: int, age: float, verdict: Verdict) -> None:
    assert judge(is_dead=is_dead, unfinished=unfinished, last_step=0, now=age, step_timeout_s=30) is verdict


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.NonFiniteTensorError("x"), "INVALID_ARGUMENT", "NON_FINITE_TENSOR"),
        (proto_errors.NonFiniteTensorError("x", "NaN"), "INVALID_ARGUMENT", "NON_FINITE_TENSOR"),
        (proto_errors.ChecksumError("x", "crc"), "DATA_LOSS", "CORRUPT_TENSOR"),
        (proto_errors.WrongHeaderError("x", "no"), "INVALID_ARGUMENT", "INVALID_TENSOR"),
        (proto_errors.WireError("no"), "INVALID_ARGUMENT", "PROTOCOL_VIOLATION"),
        (proto_errors.EncodeError("no"), "INTERNAL", "INTERNAL"),
        (KeyError("secret"), "INTERNAL", "INTERNAL"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_map_in_one_place(error: Exception, code: str, reason: str) -> None:
    status = to_status(error, stage="s", request_id="r")
    info = error_info(status)
    assert info is not None
    assert (status.code, info.reason) == (grpc.StatusCode[code].value[0], reason)
    assert "secret" not in str(status)


def test_retry_info_makes_a_refusal_retryable() -> None:
    refused = to_status(errors.TooManyRequestsError("x", retry_after_s=1.5), stage="s", request_id="r")
    assert retry_delay_s(refused) == 1.5
    assert is_retryable(refused)
    assert not is_retryable(to_status(errors.RequestTooLargeError("x"), stage="s", request_id="r"))
    assert is_retryable(to_status(errors.DrainingError("x"), stage="s", request_id="r"))
    assert not any(d.Is(error_details_pb2.BadRequest.DESCRIPTOR) for d in refused.details)


def test_first_error_prefers_the_deliberate_one() -> None:
    wanted = errors.ModelExecutionError("x")
    group = BaseExceptionGroup("g", [ValueError("a"), BaseExceptionGroup("h", [wanted])])
    assert first_error(group) is wanted


def said(stage: str, **message: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(stage=stage, **message)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        pytest.param([said("b", text={})], "before Accepted", id="text first"),
        pytest.param([said("x", accepted={})], "not below it", id="stranger"),
        pytest.param([said("c", accepted={})], "before Accepted", id="Accepted of another stage"),
        pytest.param([said("b", accepted={}), said("b")], "empty message", id="empty"),
        pytest.param([said("b", accepted={}), said("b", accepted={})], "Accepted twice", id="Accepted twice"),
        pytest.param([said("b", accepted={}), said("b", summary={})], "Summary", id="summary"),
        pytest.param(
            [said("b", accepted={}), said("b", finished={}), said("b", text={})],
            "after that stage ended",
            id="after end",
        ),
        pytest.param([said("b", accepted={}), said("c", finished={})], "without StageFinished", id="no own end"),
    ],
)
def test_downstream_protocol_violations(messages: list[pb.GenerateResponse], says: str) -> None:
    protocol = DownstreamProtocol("b", ["b", "c"])
    with pytest.raises(DownstreamProtocolError, match=says):
        _check_all(protocol, messages)


def _check_all(protocol: DownstreamProtocol, messages: list[pb.GenerateResponse]) -> None:
    for message in messages:
        protocol.check(message)
    protocol.finish()


def test_logs_hold_ids_and_no_exception_text() -> None:
    token = request_id_var.set("r7")
    try:
        raise ValueError("secret prompt")
    except ValueError as error:
        record = logging.LogRecord(
            "n", logging.ERROR, "f", 1, "it failed", (), (ValueError, error, error.__traceback__)
        )
    record.size = 3
    line = json.loads(JsonFormatter("thinker").format(record))
    text = TextFormatter("thinker").format(record)
    request_id_var.reset(token)
    assert (line["stage"], line["request_id"], line["size"]) == ("thinker", "r7", 3)
    assert "ValueError at" in line["error"]
    assert "secret" not in json.dumps(line) + text
    assert "thinker r7 n: it failed" in text


def test_request_ids_that_are_not_safe_are_replaced() -> None:
    assert request_id_of([("x-request-id", "abc-1")]) == "abc-1"
    assert len(request_id_of([("x-request-id", "a\nb")])) == 32
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert forwarded_metadata([("traceparent", trace)], "r") == (("x-request-id", "r"), ("traceparent", trace))
    assert forwarded_metadata([("traceparent", "nonsense")], "r") == (("x-request-id", "r"),)


def test_memory_limits() -> None:
    assert parse_cgroup_limit("1048576\n") == 1 << 20
    assert parse_cgroup_limit("max\n") is None
    assert parse_cgroup_limit("9223372036854771712") is None
    assert parse_memory_total("MemFree: 1 kB\nMemTotal:  2048 kB\n") == 2 << 20
    assert parse_memory_total("") is None
