"""Checks the order of a downstream stage's messages, and finds the error to report for a failed call. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.rpc import status_pb2

from omni_proto.rpc.status import read_status, status_of_call
from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.errors import (
    DeadlineExceededError,
    DownstreamProtocolError,
    DownstreamUnavailableError,
    OmniStageError,
    TooManyRequestsError,
)
from omni_stage.service.errors import to_status

_LOST = frozenset(
    # INTERNAL without an ErrorInfo comes from the transport: a reset stream, or a write to a closed connection.
    (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
)


class DownstreamProtocol:
    """Checks the messages of one call: Accepted comes first, no stage sends anything after its end, the called stage
    does end, and there is neither a Summary nor a message of an unknown stage."""

    def __init__(self, stage: str, stages: Sequence[str]) -> None:
        self._stage = stage
        self._stages = frozenset(stages)
        self._ended: set[str] = set()
        self._accepted = False

    def check(self, response: stage_service_pb2.GenerateResponse) -> None:
        """Check one message. Raises DownstreamProtocolError."""
        kind = response.WhichOneof("message")
        if response.stage not in self._stages:
            raise self._broken(
                f"sent a message of stage {response.stage!r}, which is neither this stage nor downstream of it"
            )
        if kind is None:
            raise self._broken("sent an empty message, or one of a newer protocol")
        if not self._accepted:
            if kind != "accepted" or response.stage != self._stage:
                raise self._broken(f"sent {kind} of stage {response.stage!r} before its own Accepted")
            self._accepted = True
            return
        if kind == "summary":
            raise self._broken("sent a Summary, which only the entry stage sends")
        if response.stage in self._ended:
            raise self._broken(f"sent {kind} of stage {response.stage!r} after that stage ended")
        if kind == "accepted" and response.stage == self._stage:
            raise self._broken("sent Accepted twice")
        if kind in ("finished", "failed"):
            self._ended.add(response.stage)

    def finish(self) -> None:
        """Check a call that ended with OK. Raises DownstreamProtocolError if the stage did not report its own end."""
        if self._stage not in self._ended:
            raise self._broken("ended its call without StageFinished or StageFailed")

    def _broken(self, what: str) -> DownstreamProtocolError:
        return DownstreamProtocolError(f"stage {self._stage!r} {what}; do both stages run the same version?")


def explain_failure(error: grpc.RpcError, *, pipeline: str, stage: str, request_id: str) -> status_pb2.Status:
    """Returns the status to report for a failed call: the status that a stage sent, else one that names `stage` and its
    pipeline."""
    status = status_of_call(error)
    if status is not None and read_status(status).is_of_a_stage:
        return status
    return to_status(_explain(error.code(), f"{stage!r} of pipeline {pipeline!r}"), stage=stage, request_id=request_id)


def _explain(code: grpc.StatusCode, stage: str) -> OmniStageError:
    """Returns the error for a code that no stage sent. Such a code comes from the transport, or from a server that is
    no stage server. `stage`: its name and pipeline."""
    if code in _LOST:
        return DownstreamUnavailableError(
            f"stage {stage} cannot be reached, or its connection was lost ({code.name}); is it ready?",
            retry_after_s=1.0,
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError(f"stage {stage} did not answer within the request's deadline")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return TooManyRequestsError(f"the server of stage {stage} takes no more calls", retry_after_s=1.0)
    return DownstreamProtocolError(f"stage {stage} answered {code.name} without saying why; is it a stage server?")
