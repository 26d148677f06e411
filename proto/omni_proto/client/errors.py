"""The errors of calls, read from the gRPC status with its ErrorInfo, BadRequest and RetryInfo."""

from __future__ import annotations

from typing import Final

import grpc
from google.rpc import status_pb2

from omni_proto.client.connection import explain_refusal
from omni_proto.errors import OmniProtoError
from omni_proto.rpc.status import read_status, status_of_call


class OmniRequestError(OmniProtoError):
    """A request failed. str() is for people; the attributes are for programs."""

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
        actual: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """The gRPC code."""
        self.message = message
        """The message from the stage, or from gRPC if no stage was reached."""
        self.reason = reason
        """omni_proto.stage.v1.ErrorReason without its prefix; empty if the failure is gRPC's own."""
        self.stage = stage
        """The stage that failed; empty if unknown."""
        self.request_id = request_id
        """Id of the request in the logs; empty if unknown."""
        self.field = field
        """Path of the wrong field of the request; empty if no field is wrong."""
        self.limit = limit
        """The limit that was exceeded, with its unit; empty if none was."""
        self.actual = actual
        """What exceeded the limit, with its unit, such as "6027 tokens"; empty if it is not known."""
        self.retry_after_s = retry_after_s
        """Seconds after which a retry may succeed; None if the server did not say."""

    def __str__(self) -> str:
        where = f"stage {self.stage!r}: " if self.stage else ""
        label = f"{self.code.name}/{self.reason}" if self.reason else self.code.name
        return f"{where}{label}: {self.message or 'no message'}"


class ProtocolError(OmniRequestError):
    """The server broke the protocol. Never retried."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.INTERNAL, message, reason="DOWNSTREAM_PROTOCOL")


def closed_error() -> OmniRequestError:
    """Returns the error of a call whose client is closed, or was closed during the call."""
    return OmniRequestError(grpc.StatusCode.CANCELLED, "the client is closed")


def error_from_status(status: status_pb2.Status) -> OmniRequestError:
    """Returns the error that a google.rpc.Status describes; StageFailed and the trailers of a call hold one."""
    read = read_status(status)
    return OmniRequestError(
        read.code,
        read.message,
        reason=read.reason,
        stage=read.stage,
        request_id=read.request_id,
        field=read.field,
        limit=read.limit,
        actual=read.actual,
        retry_after_s=read.retry_after_s,
    )


_LOST: Final = (
    *("Stream removed", "Socket closed", "Connection reset", "Connection refused", "Broken pipe", "Transport closed"),
    *("GOAWAY", "goaway", "RST_STREAM", "keepalive", "ping timeout", "recvmsg", "End of TCP stream", "EOF"),
    *("failed to connect", "connections to all backends failing", "DNS resolution failed", "Name resolution"),
    "Internal error from Core",
)
"""Parts of gRPC's messages for a connection that could not be made or was lost. gRPC reports some of them as UNKNOWN,
INTERNAL or CANCELLED."""
_LOST_CODES: Final = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


def error_from_rpc(error: grpc.RpcError, *, target: str = "", stage: str = "") -> OmniRequestError:
    """Returns the error of a failed call, blocking or asyncio.

    Trailers that do not parse, or that contradict the call's code, are ignored; the call's code and message are used.
    A connection that was lost or could not be made is UNAVAILABLE, and the message names the stage and the target.
    `target`: where the call went. `stage`: the entry stage, if it has answered.
    """
    status = status_of_call(error)
    if status is not None:
        return error_from_status(status)
    code, details = error.code() or grpc.StatusCode.UNKNOWN, error.details() or ""
    is_lost = any(words in details for words in _LOST)
    if code is not grpc.StatusCode.UNAVAILABLE and not (is_lost and code in _LOST_CODES):
        return OmniRequestError(code, explain_refusal(details), stage=stage)
    at = f" at {target}" if target else ""
    who = f"stage {stage!r}{at}" if stage else f"the entry stage{at}"
    what = (
        f"the connection to {who} was lost" if stage else f"{who} cannot be reached, or the connection to it was lost"
    )
    message = f"{what} ({explain_refusal(details) or 'no reason given'}); is the pipeline ready?"
    return OmniRequestError(grpc.StatusCode.UNAVAILABLE, message, stage=stage)
