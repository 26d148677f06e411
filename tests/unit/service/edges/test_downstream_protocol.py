"""Which messages a downstream stage may send, in which order, and which deadline its call gets."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_stage.errors import DeadlineExceededError, DownstreamProtocolError
from omni_stage.service.edges.channels import Deadline, downstream_timeout
from omni_stage.service.edges.downstream_protocol import DownstreamProtocol


def said(stage: str, **message: Any) -> pb.GenerateResponse:
    return pb.GenerateResponse(stage=stage, **message)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        pytest.param([said("b", text={})], "before its own Accepted", id="text first"),
        pytest.param([said("x", accepted={})], "neither this stage nor downstream", id="unknown stage"),
        pytest.param([said("c", accepted={})], "before its own Accepted", id="Accepted of another stage"),
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


@pytest.mark.parametrize(
    ("remaining", "expected"), [pytest.param(10.0, 9.8, id="2 percent"), pytest.param(1.0, 0.95, id="50 ms")]
)
def test_deadline_shrinks(remaining: float, expected: float) -> None:
    assert downstream_timeout(remaining, "b") == pytest.approx(expected)


def test_deadline_too_short_to_call() -> None:
    with pytest.raises(DeadlineExceededError):
        downstream_timeout(0.05, "b")
    assert Deadline.of_call(None, 300, 10).remaining(20) == 290
    assert Deadline.of_call(5, 300, 10).remaining(20) == -5
    assert Deadline.of_call(1e9, 300, 10).remaining(20) == 290
