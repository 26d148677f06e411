"""The error of a call: what the gRPC status, ErrorInfo, BadRequest and RetryInfo of a failed request say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from omni_proto.client.connection import explain_refusal
from omni_proto.errors import OmniProtoError

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class OmniRequestError(OmniProtoError):
    """A request failed. `str()` of it is for people; the attributes are for programs."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: str = "",
        stage: str = "",
        request_id: str = "",
        field: str = "",
        limit: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """The gRPC code."""
        self.message = message
        """What the stage says, or gRPC if no stage was reached."""
        self.reason = reason
        """omni_proto.stage.v1.ErrorReason without its prefix; empty if the failure is gRPC's own."""
        self.stage = stage
        """The stage that failed; empty if unknown."""
        self.request_id = request_id
        """Id of the request in the logs; empty if unknown."""
        self.field = field
        """Path of the wrong field of the request; empty if none is."""
        self.limit = limit
        """The limit that was passed, with its unit; empty if none was."""
        self.retry_after_s = retry_after_s
        """When a retry may work, in seconds; None if the server did not say."""

    def __str__(self) -> str:
        where = f"stage {self.stage!r}: " if self.stage else ""
        label = f"{self.code.name}/{self.reason}" if self.reason else self.code.name
        return f"{where}{label}: {self.message or 'no message'}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions of one argument are rebuilt from their message; this one has two.
        return (type(self), (self.code, self.message), self.__dict__)


class ProtocolError(OmniRequestError):
    """The server broke the protocol. Never retried."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.INTERNAL, message, reason="DOWNSTREAM_PROTOCOL")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message,), self.__dict__)


@dataclass(frozen=True, slots=True)
class _Details:
    reason: str = ""
    stage: str = ""
    request_id: str = ""
    field: str = ""
    limit: str = ""
    retry_after_s: float | None = None


def error_from_status(status: status_pb2.Status) -> OmniRequestError:
    """The error that a google.rpc.Status describes: of StageFailed, or of a call's trailers."""
    details = _read_details(status)
    return OmniRequestError(
        _CODES.get(status.code, grpc.StatusCode.UNKNOWN),
        status.message,
        reason=details.reason,
        stage=details.stage,
        request_id=details.request_id,
        field=details.field,
        limit=details.limit,
        retry_after_s=details.retry_after_s,
    )


def error_from_rpc(error: grpc.RpcError) -> OmniRequestError:
    """The error of a failed call, blocking or asyncio.

    Trailers that do not parse, or that contradict the call's own code, are ignored: the code and message stand.
    """
    try:
        status = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        status = None
    if status is not None:
        return error_from_status(status)
    code = error.code()
    message = explain_refusal(error.details() or "")
    return OmniRequestError(code if code is not None else grpc.StatusCode.UNKNOWN, message)


def _read_details(status: status_pb2.Status) -> _Details:
    info, bad_request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    has_retry = False
    for packed in status.details:
        if packed.Is(info.DESCRIPTOR):
            _unpack(packed, info)
        elif packed.Is(bad_request.DESCRIPTOR):
            _unpack(packed, bad_request)
        elif packed.Is(retry.DESCRIPTOR):
            has_retry = _unpack(packed, retry)
    field = info.metadata.get("field", "")
    if not field and bad_request.field_violations:
        field = bad_request.field_violations[0].field
    delay = retry.retry_delay
    return _Details(
        reason=info.reason,
        stage=info.metadata.get("stage", ""),
        request_id=info.metadata.get("request_id", ""),
        field=field,
        limit=info.metadata.get("limit", ""),
        retry_after_s=max(0.0, delay.seconds + delay.nanos / 1e9) if has_retry else None,
    )


def _unpack(packed: Message, into: Message) -> bool:
    try:
        into.ParseFromString(packed.value)  # type: ignore[attr-defined]
    except DecodeError:
        into.Clear()
        return False
    return True
