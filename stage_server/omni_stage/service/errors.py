"""Turns errors into gRPC statuses: code, message, ErrorInfo, BadRequest, RetryInfo.

Every error of a Generate call, except its cancellation, passes through `to_status`. Calls of other methods that exceed
their bounds are ended directly by server/side_calls.py. An unexpected error becomes INTERNAL with a fixed message,
because its own text may hold a prompt.
"""

from __future__ import annotations

from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from omni_proto.errors import OmniProtoError, WireError
from omni_proto.pod_contract import DOMAIN
from omni_stage.errors import OmniStageError, ProtocolViolationError

MAX_MESSAGE_CHARS = 1024
"""Maximum length of an error message. Messages travel in HTTP/2 trailers, which peers limit to 8 KiB in total."""

_DOCUMENTED = (OmniStageError.__module__, ProtocolViolationError.__module__)
OTHER_REASON = "OTHER"
"""Metrics label for reasons that this version does not know: a downstream stage may run another version."""


def documented_errors() -> frozenset[tuple[str, str]]:
    """Returns every pair of gRPC code and reason with which this version can end a call, including ("OK", "")."""
    pending, found = [OmniStageError], {("OK", ""), ("CANCELLED", "CANCELLED")}
    while pending:
        kind = pending.pop()
        pending += [child for child in kind.__subclasses__() if child.__module__ in _DOCUMENTED]
        found.add((kind.code, kind.reason))
    return frozenset(found)


class RelayedError(OmniStageError):
    """A downstream stage failed. Its status is passed to the caller unchanged."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class CallerLeftError(OmniStageError):
    """The caller disconnected while a message was written to it. The call ends as if it had been cancelled."""


def to_stage_error(error: BaseException) -> OmniStageError | None:
    """Returns the stage error that corresponds to an error, or None for an unexpected error."""
    if isinstance(error, OmniStageError):
        return error
    if isinstance(error, WireError):
        return ProtocolViolationError(str(error), field="message")
    if isinstance(error, OmniProtoError):
        # The encoder refused this stage's own output: an internal error, but its message is safe to show.
        return OmniStageError(f"the stage cannot write its output: {error}")
    return None


def to_status(error: BaseException, *, stage: str, request_id: str) -> status_pb2.Status:
    """Returns the google.rpc.Status of any error; `stage` names the stage that failed."""
    if isinstance(error, RelayedError):
        return error.status
    known = to_stage_error(error) or OmniStageError(
        f"internal error of stage {stage!r}; its log has the details under request id {request_id}"
    )
    status = status_pb2.Status(code=StatusCode[known.code].value[0], message=str(known)[:MAX_MESSAGE_CHARS])
    details = known.details
    metadata = {"stage": stage, "request_id": request_id, "field": details.field}
    metadata |= {"limit": details.limit, "actual": details.actual}
    info = error_details_pb2.ErrorInfo(
        domain=DOMAIN, reason=known.reason, metadata={k: v for k, v in metadata.items() if v}
    )
    status.details.add().Pack(info)
    if details.field and known.code == StatusCode.INVALID_ARGUMENT.name:
        violation = error_details_pb2.BadRequest.FieldViolation(field=details.field, description=status.message)
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if details.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(details.retry_after_s * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def first_error(error: BaseException) -> BaseException:
    """Returns the error to report for a TaskGroup's exception group: its first stage error, else its first error. Any
    other error is returned unchanged."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_error(item) for item in error.exceptions]
    return next((leaf for leaf in leaves if to_stage_error(leaf) is not None), leaves[0])
