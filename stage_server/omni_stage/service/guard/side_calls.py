"""Bounds calls other than Generate (health, reflection, GetStage): their number, per peer and in total, and their
duration.

Each of these methods is served as a streaming method, which looks the same on the wire. For a unary method, gRPC would
wait for the request without a time limit before any of this code runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from omni_proto.runtime.limits import Client
from omni_stage.errors import TooManyRequestsError
from omni_stage.service.guard.admission import CallQuota, peer_address
from omni_stage.service.wire import GENERATE, SERVICE_NAME

MAIN_IN_ALL, MAIN_PER_PEER = 512, 64
"""Maximum number of calls on the main port, in all and per peer. These bounds apply separately to calls that stream
responses and to calls with one response. A client's channel watches health with one stream per connection."""
HEALTH_IN_ALL, HEALTH_PER_PEER = 128, 16
"""The same bounds for the health port; kubelet sends one call at a time."""
REQUEST_TIMEOUT_S = 5.0
"""Time limit, in seconds, for receiving the request of a method that takes a single request."""
ANSWER_TIMEOUT_S = 30.0
WATCH_LIFE_S = 600.0
"""Maximum duration of a health watch, after which its client watches again. In most cases, the connection reaches its
maximum age earlier."""
REFLECTION_LIFE_S = 60.0

_WATCH = f"/{health.SERVICE_NAME}/Watch"
_LIVES_S = {_WATCH: WATCH_LIFE_S, f"/{reflection.SERVICE_NAME}/ServerReflectionInfo": REFLECTION_LIFE_S}
_Behavior = Callable[[Any, Any], Any]


class SideCallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Bounds every call except those of Generate, which admission bounds."""

    def __init__(self, in_all: int, per_peer: int) -> None:
        self._streams = CallQuota("streams beside Generate", in_all, per_peer=per_peer)
        self._questions = CallQuota("calls with one answer", in_all, per_peer=per_peer)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method == f"/{SERVICE_NAME}/{GENERATE}":
            return handler
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        life_s = _LIVES_S.get(method, ANSWER_TIMEOUT_S)
        # If a health watch ends with UNIMPLEMENTED, a gRPC client uses the connection without watching. With any other
        # code, it sends no requests on the connection until a new watch succeeds.
        full = grpc.StatusCode.UNIMPLEMENTED if method == _WATCH else grpc.StatusCode.RESOURCE_EXHAUSTED
        return grpc.stream_stream_rpc_method_handler(
            self._bound(
                behavior,
                self._streams if handler.response_streaming else self._questions,
                life_s,
                full,
                one_request=not handler.request_streaming,
            ),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _bound(
        self, behavior: _Behavior, quota: CallQuota, life_s: float, full: grpc.StatusCode, *, one_request: bool
    ) -> _Behavior:
        async def call(messages: AsyncIterator[Any], context: Any) -> None:
            slot = None
            try:
                async with asyncio.timeout(life_s) as scope:
                    with quota.hold(Client(peer_address(context.peer())), partial(scope.reschedule, 0.0)) as slot:
                        request = await _read_only(messages, context) if one_request else messages
                        await _answer(behavior(request, context), context)
            except TooManyRequestsError as error:
                await context.abort(full, str(error))
            except TimeoutError:
                if not scope.expired():
                    raise
                if slot is not None and slot.evicted:
                    await context.abort(full, str(quota.refusal()))
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"this call ends after {life_s:g} s; call again")

        return call


async def _answer(outcome: Any, context: Any) -> None:
    """Send a method's responses. `outcome` is an async generator of responses, or an awaitable of one response, or of
    None if the method itself wrote to the context."""
    if hasattr(outcome, "__aiter__"):
        async for response in outcome:
            await context.write(response)
        return
    response = await outcome
    if response is not None:
        await context.write(response)


async def _read_only(messages: AsyncIterator[Any], context: Any) -> Any:
    """Returns the only message of a call. Ends the call unless exactly one message and the stream's end arrive in
    time."""
    requests = []
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            async for message in messages:
                requests.append(message)
                if len(requests) > 1:
                    break
    except TimeoutError:
        await context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the request and the end of the stream did not arrive within {REQUEST_TIMEOUT_S:g} s",
        )
    if len(requests) != 1:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the method takes one message, got {len(requests)}")
    return requests[0]
