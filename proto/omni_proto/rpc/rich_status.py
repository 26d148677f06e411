"""Reads google.rpc.Status, the details of a failed call. Stages write it; stages and clients read it here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from omni_proto.pod_contract import DOMAIN

STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"
"""The trailer that holds a google.rpc.Status."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_Detail = TypeVar("_Detail", bound=Message)


@dataclass(frozen=True, slots=True)
class RichStatus:
    """A google.rpc.Status as plain values. Missing fields are empty."""

    code: grpc.StatusCode
    message: str
    domain: str = ""
    """Domain of the ErrorInfo, which names the system that made it."""
    reason: str = ""
    """omni_proto.stage.v1.ErrorReason without its prefix."""
    stage: str = ""
    """The stage that failed."""
    request_id: str = ""
    field: str = ""
    """Path of the wrong field of the request."""
    limit: str = ""
    """The limit that was exceeded, with its unit."""
    actual: str = ""
    """What exceeded the limit, with its unit."""
    retry_after_s: float | None = None
    """Seconds after which a retry may succeed; None without a RetryInfo."""

    @property
    def is_of_a_stage(self) -> bool:
        """Whether a stage made the status, rather than gRPC or something else on the port."""
        return self.domain == DOMAIN


def grpc_code(number: int) -> grpc.StatusCode:
    """Returns the gRPC code of a google.rpc.Code number; UNKNOWN for numbers that gRPC does not have."""
    return _CODES.get(number, grpc.StatusCode.UNKNOWN)


def read_status(status: status_pb2.Status) -> RichStatus:
    """Returns the contents of a status. Details that do not parse, or are of other types, are ignored."""
    infos = list(_find(status, error_details_pb2.ErrorInfo))
    info = next((one for one in infos if one.domain == DOMAIN), infos[0] if infos else error_details_pb2.ErrorInfo())
    field = info.metadata.get("field", "") or next(
        (
            violation.field
            for request in _find(status, error_details_pb2.BadRequest)
            for violation in request.field_violations
        ),
        "",
    )
    delays = [one.retry_delay for one in _find(status, error_details_pb2.RetryInfo)]
    return RichStatus(
        grpc_code(status.code),
        status.message,
        domain=info.domain,
        reason=info.reason,
        stage=info.metadata.get("stage", ""),
        request_id=info.metadata.get("request_id", ""),
        field=field,
        limit=info.metadata.get("limit", ""),
        actual=info.metadata.get("actual", ""),
        retry_after_s=max(0.0, delays[0].seconds + delays[0].nanos / 1e9) if delays else None,
    )


def status_of_call(error: grpc.RpcError) -> status_pb2.Status | None:
    """Returns the status in the trailers of a failed call, blocking or asyncio; None if there is none.

    Trailers that do not parse, or that contradict the call's own code, count as none.
    """
    code = error.code()
    for key, value in error.trailing_metadata() or ():
        if key != STATUS_DETAILS_KEY:
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:
            continue
        if code is not None and status.code == code.value[0]:
            return status
    return None


def _find(status: status_pb2.Status, kind: type[_Detail]) -> Iterator[_Detail]:
    for packed in status.details:
        detail = kind()
        if _unpack(packed, detail):
            yield detail


def _unpack(packed: Any, into: Message) -> bool:
    """Unpack `packed` into a message. Returns whether it is of that message's type and parses."""
    try:
        return bool(packed.Unpack(into))
    except DecodeError:
        return False
