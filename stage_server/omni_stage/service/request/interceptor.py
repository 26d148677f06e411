"""Wraps the calls of StageService. Every call gets a request id and a status. Generate calls are also logged and
counted, and a Generate call that is refused may have to wait for its status (refusals.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import status_pb2

from omni_proto.rpc.status import STATUS_DETAILS_KEY, grpc_code, read_status
from omni_stage.process.stage_log import request_id_var
from omni_stage.service.errors import CallerLeftError, RelayedError, to_stage_error, to_status
from omni_stage.service.guard.refusals import HeldRefusals
from omni_stage.service.load import LoadMeter
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.tracing import client_of, request_id_of
from omni_stage.service.wire import SERVICE_NAME

DISCARD_S = 0.05
"""Maximum number of seconds for which the messages of a refused call are discarded."""
QUIET_S = 0.01
"""A pause of this many seconds in a call's messages ends the discarding."""
DISCARDING = 64
"""Maximum number of refused calls whose messages are read and discarded at a time."""

_log = logging.getLogger(__name__)
_FAULTS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_Metadata = tuple[tuple[str, bytes], ...]
_Behavior = Callable[[Any, Any], Awaitable[Any]]


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Turns the error of a failed call into a status (service/errors.py). Writes the access log and counts the calls.

    Calls of the port's other services (health, reflection) pass unchanged.
    """

    def __init__(
        self, stage: str, metrics: StageMetrics, held: HeldRefusals | None = None, load: LoadMeter | None = None
    ) -> None:
        """held: makes refusals wait; None for a stage that only other stages call. load: reported in trailers."""
        self._stage = stage
        self._metrics = metrics
        self._held = held
        self._load = load
        self._discarding = 0

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(f"/{SERVICE_NAME}/"):
            return handler
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._wrap(handler.stream_stream, counted=True), **codec)
        return grpc.unary_unary_rpc_method_handler(self._wrap(handler.unary_unary, counted=False), **codec)

    def _wrap(self, behavior: _Behavior, *, counted: bool) -> _Behavior:
        async def call(request: Any, context: Any) -> Any:
            request_id = request_id_of(context.invocation_metadata())
            token = request_id_var.set(request_id)
            began = time.monotonic()
            try:
                with self._metrics.in_flight.track_inprogress():
                    result = await behavior(request, context)
                ended = _End(grpc.StatusCode.OK)
            except asyncio.CancelledError:
                result, ended = None, _End(grpc.StatusCode.CANCELLED, "CANCELLED")
            except CallerLeftError as error:
                # If gRPC does not cancel the call, the caller is still there and must not wait for its deadline.
                status = status_pb2.Status(code=grpc.StatusCode.CANCELLED.value[0], message=str(error))
                result, ended = None, _End(grpc.StatusCode.CANCELLED, "CANCELLED", status)
            except Exception as error:  # noqa: BLE001 - the one place that turns any error into a status
                result, ended = None, self._judge(error, request_id)
            # The error is out of scope here: its traceback must not keep the call's data alive while a refusal waits.
            try:
                wait_s = self._count(context, ended, time.monotonic() - began) if counted else 0.0
                if ended.status is None:
                    if ended.code is grpc.StatusCode.CANCELLED:
                        raise asyncio.CancelledError
                    if trailer := self._trailer(counted=counted):
                        context.set_trailing_metadata(trailer)
                    return result
                if counted and ended.code is not grpc.StatusCode.CANCELLED:
                    await self._discard(request)
                if wait_s and self._held is not None:
                    await self._held.hold(client_of(context), wait_s, context.time_remaining())
                await _abort(context, ended.status, self._trailer(counted=counted))
            finally:
                request_id_var.reset(token)

        return call

    def _judge(self, error: Exception, request_id: str) -> _End:
        if to_stage_error(error) is None:
            _log.error("internal error", exc_info=error)
        status = to_status(error, stage=self._stage, request_id=request_id)
        read = read_status(status)
        return _End(read.code, read.reason, status, relayed=isinstance(error, RelayedError))

    def _count(self, context: Any, ended: _End, seconds: float) -> float:
        """Count a call that has ended. Returns for how many seconds its status should wait."""
        self._metrics.request_ended(ended.code.name, ended.reason, seconds)
        if self._load is not None:
            self._load.ended(failed=ended.code in _FAULTS and not ended.relayed)
        extra = {"code": ended.code.name, "reason": ended.reason, "seconds": round(seconds, 4)}
        _log.info("request ended", extra=extra)
        if self._held is None or ended.code is grpc.StatusCode.OK or ended.relayed:
            return 0.0
        return self._held.charge(client_of(context), ended.code, ended.reason, seconds)

    def _trailer(self, *, counted: bool) -> _Metadata:
        """Returns the report of the stage's load, for the trailer of a Generate call."""
        if self._load is None or not counted:
            return ()
        return self._load.report().to_trailer()

    async def _discard(self, messages: AsyncIterator[Any]) -> None:
        """Read and discard the messages that the caller is still sending.

        A grpc.aio client that writes to a call that has ended replaces the call's status with INTERNAL. Discarding
        stops when the caller pauses, for example to wait for Accepted, because the caller's deadline may be near.
        Neither admission nor a quota limits how many messages are discarded. So the messages of at most DISCARDING
        calls are discarded at a time, however many calls are refused.
        """
        if self._discarding >= DISCARDING:
            return
        self._discarding += 1
        try:
            async with asyncio.timeout(DISCARD_S):
                while True:
                    async with asyncio.timeout(QUIET_S):
                        await anext(messages)
        except (TimeoutError, StopAsyncIteration):
            return
        finally:
            self._discarding -= 1


@dataclass(frozen=True, slots=True)
class _End:
    """How a call ended."""

    code: grpc.StatusCode
    reason: str = ""
    status: status_pb2.Status | None = None
    """The status that the client gets; None if the call succeeded or the client disconnected."""
    relayed: bool = False
    """Whether a downstream stage refused the call. Such a refusal never waits, because the client may not have caused
    it."""


async def _abort(context: Any, status: status_pb2.Status, more: _Metadata) -> None:
    trailer = ((STATUS_DETAILS_KEY, status.SerializeToString()), *more)
    await context.abort(grpc_code(status.code), status.message, trailing_metadata=trailer)
