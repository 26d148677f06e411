"""The status of a failed call: google.rpc.Status, which stages write and which stages and clients read, and the true
status of an asyncio call, which a race in grpc.aio may hide.

When a stage ends a call while its caller still writes, the write fails. grpc.aio then replaces the status by INTERNAL
"Internal error from Core", before or after the true status arrives (1.85, `_call.py`: `_write` calls
`set_internal_error`). A refusal with RetryInfo would look like a fault. Every change of the status runs the done
callbacks, so a done callback sees the true status. StatusKeeper uses only public interfaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
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


_MASK: Final = "Internal error from Core"
_PATIENCE_S: Final = 2.0
_POLL_S: Final = 0.005


class StatusKeeper:
    """Remembers the true status of a call. Make it right after the call, in its event loop."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._true: grpc.aio.AioRpcError | None = None
        self._seen = False
        call.add_done_callback(self._note)

    async def unmask(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError | None:
        """Returns the error that the call truly ended with, or None if it ended with OK.

        Returns `error` itself, unless it reports only that a write failed. The true status usually follows a failed
        write at once; if the true status does not come within 2 s, `error` is returned. Read the call with `async for`,
        which delivers all messages before the error; `call.read()` stops at the false status and loses messages.
        """
        if not _is_mask(error):
            return error
        for _ in range(round(_PATIENCE_S / _POLL_S)):
            self._note(self._call)
            if self._seen:
                return self._true
            await asyncio.sleep(_POLL_S)
        return error

    def _note(self, call: Any) -> None:
        if self._seen or not call.done():
            return
        code, details = _result(call.code()), _result(call.details())
        if code is None or code is grpc.StatusCode.OK:
            self._seen = code is not None
            return
        error = grpc.aio.AioRpcError(
            code,
            initial_metadata=grpc.aio.Metadata(),
            trailing_metadata=_result(call.trailing_metadata()) or grpc.aio.Metadata(),
            details=details,
        )
        if not _is_mask(error):
            self._true, self._seen = error, True


def _is_mask(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and error.details() == _MASK


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Returns the result of a coroutine that does not wait, such as a done call's code(); None if it would wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    return None
