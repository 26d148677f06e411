"""AsyncOmniClient: a pipeline as an asyncio client."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from omni_proto.aio_status import StatusKeeper
from omni_proto.channel import Options
from omni_proto.client.arguments import GenerateArguments, Metadata, prepare_call
from omni_proto.client.connection import ClientTls, plan_connection
from omni_proto.client.errors import ProtocolError, error_from_rpc
from omni_proto.client.events import Accepted, Event, event_from_response
from omni_proto.client.lines import Lines, is_unreached
from omni_proto.client.request import PreparedRequest
from omni_proto.client.result import GenerationResult, ResultBuilder
from omni_proto.client.retry import compute_retry_wait_s
from omni_proto.client.timing import check_timeout, remaining_s
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest


class AsyncOmniClient:
    """Calls the entry stage of a pipeline. Use as an async context manager, or call close().

    target is a gRPC target, e.g. "localhost:50051" or "dns:///qwen.default.svc.cluster.local.:50051", or the url of a
    pipeline's status: grpc://HOST:PORT, grpcs://HOST:PORT for TLS. tls makes any target TLS: True trusts the public
    CAs, ClientTls names others. credentials are gRPC's own, instead. options replace channel_options(). Raises
    ArgumentError.
    """

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | bool | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        options: Options | None = None,
    ) -> None:
        plan = plan_connection(target, tls=tls, credentials=credentials, options=options)

        def open_channel() -> grpc.aio.Channel:
            if plan.credentials is None:
                return grpc.aio.insecure_channel(plan.target, options=plan.options)
            return grpc.aio.secure_channel(plan.target, plan.credentials, options=plan.options)

        self._lines = Lines(open_channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        for channel in self._lines.close():
            await channel.close()

    async def get_stage(
        self,
        *,
        timeout: float | None = 10.0,  # noqa: ASYNC109 - a deadline that the server sees
        wait_for_ready: bool = False,
    ) -> stage_service_pb2.GetStageResponse:
        """What the entry stage is. wait_for_ready waits, up to timeout seconds, for a server that is not up yet.

        Raises OmniRequestError.
        """
        lost, line = False, self._lines.take()
        try:
            response: stage_service_pb2.GetStageResponse = await _stub(line.channel).GetStage(
                stage_service_pb2.GetStageRequest(), timeout=check_timeout(timeout), wait_for_ready=wait_for_ready
            )
        except grpc.aio.AioRpcError as error:
            lost = is_unreached(error, accepted=False)
            raise error_from_rpc(error) from error
        finally:
            if (unused := self._lines.give_back(line, lost=lost)) is not None:
                await unused.close()
        return response

    def generate(self, **arguments: Unpack[GenerateArguments]) -> AsyncGenerator[Event, None]:
        """Run a request; returns its events as they come. GenerateArguments documents the arguments.

        Exactly one of text, chat, raw_text, token_ids and prompt_embeds is the prompt. Closing the generator cancels
        the call and all stages: leave early through `contextlib.aclosing`.
        Before Accepted, UNAVAILABLE, RESOURCE_EXHAUSTED with RetryInfo and a server's own CANCELLED are tried again, 3
        times in all; after it nothing is. Raises ArgumentError at once, OmniRequestError while iterating.
        """
        call = prepare_call(arguments)
        return self._events(call.request, call.metadata, call.timeout_s)

    async def run(self, **arguments: Unpack[GenerateArguments]) -> GenerationResult:
        """Run a request to its end; returns the whole answer. Arguments and errors are those of generate()."""
        builder = ResultBuilder()
        events = self.generate(**arguments)
        try:
            async for event in events:
                builder.add(event)
        finally:
            await events.aclose()
        return builder.result()

    async def _events(
        self, prepared: PreparedRequest, metadata: Metadata, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        attempt = 0
        while True:
            attempt += 1
            accepted = False
            gate = asyncio.Event()
            lost, line = False, self._lines.take()
            call = _stub(line.channel).Generate(
                _write(prepared, gate), timeout=remaining_s(deadline), metadata=metadata
            )
            status = StatusKeeper(call)
            try:
                async for response in call:
                    if response is None:  # what grpc.aio makes of bytes that do not parse
                        raise ProtocolError("a message is not a GenerateResponse: truncated or damaged")
                    event = event_from_response(response)
                    if not accepted and not isinstance(event, Accepted):
                        raise ProtocolError(f"{response.WhichOneof('message') or 'nothing'} came before accepted")
                    accepted = True
                    gate.set()
                    if event is not None:
                        yield event
            except grpc.aio.AioRpcError as caught:
                rpc_error = await status.unmask(caught)
                lost = is_unreached(rpc_error, accepted)
                wait = self._wait_or_raise(rpc_error, accepted, attempt, deadline)
            else:
                wait = self._wait_or_raise(None, accepted, attempt, deadline)
            finally:
                call.cancel()  # no effect on a call that is over
                gate.set()
                if (unused := self._lines.give_back(line, lost=lost)) is not None:
                    await unused.close()
            if wait is None:
                return
            await asyncio.sleep(wait)

    @staticmethod
    def _wait_or_raise(
        rpc_error: grpc.RpcError | None, accepted: bool, attempt: int, deadline: float | None
    ) -> float | None:
        """After a call: seconds until the next attempt, None if the request is done. Raises OmniRequestError."""
        if rpc_error is None:
            if not accepted:
                raise ProtocolError("the call ended without accepted")
            return None
        failure = error_from_rpc(rpc_error)
        wait = None
        if not accepted:
            wait = compute_retry_wait_s(
                failure,
                attempt=attempt,
                remaining_s=remaining_s(deadline),
                jitter=random.random(),  # noqa: S311
            )
        if wait is None:
            raise failure from rpc_error
        return wait


def _stub(channel: grpc.aio.Channel) -> Any:
    return stage_service_pb2_grpc.StageServiceStub(channel)  # type: ignore[no-untyped-call]


async def _write(prepared: PreparedRequest, gate: asyncio.Event) -> AsyncGenerator[GenerateRequest, None]:
    """Start, and the rest once the gate opens, which is when the client saw Accepted.

    A stage works only after End, so a retry, which happens only before Accepted, never makes a request run twice, even
    if an Accepted was lost on its way; and no media are sent to a stage that refuses the request.
    """
    messages = prepared.messages()
    yield next(messages)
    await gate.wait()
    for message in messages:
        yield message
