"""AsyncOmniClient: the asyncio client of a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from omni_proto.client.attempts import Attempts
from omni_proto.client.connection import ClientTls, plan_connection
from omni_proto.client.errors import closed_error, error_from_rpc
from omni_proto.client.events import Event
from omni_proto.client.messages import PreparedRequest, affinity_of, check_timeout, prepare_call
from omni_proto.client.prompt import GenerateArguments, Metadata
from omni_proto.client.result import GenerationResult, ResultBuilder
from omni_proto.errors import ArgumentError
from omni_proto.rpc.balance.choice import Affinity
from omni_proto.rpc.balance.report import find_report
from omni_proto.rpc.balance.watch import borrow_aio, open_aio_pool
from omni_proto.rpc.channels import Loan
from omni_proto.rpc.options import Options
from omni_proto.rpc.retry import is_unreached
from omni_proto.rpc.status import StatusKeeper
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest


class AsyncOmniClient:
    """Calls the entry stage of a pipeline. Use as an async context manager, or call close().

    target is a gRPC target, e.g. "localhost:50051" or "dns:///qwen.default.svc.cluster.local.:50051", or the url of a
    pipeline's status: grpc://HOST:PORT, grpcs://HOST:PORT for TLS. tls turns on TLS for any target: True trusts the
    public CAs, ClientTls can name others. credentials are gRPC's own and are given instead of tls. options replace
    channel_options(), except the options that keep gRPC from crashing. Raises ArgumentError.

    A client may be made before an event loop runs. It belongs to the event loop of its first call.
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
        self._target = plan.target
        self._pool = open_aio_pool(plan.target, plan.credentials, plan.options)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        for channel in self._pool.close():
            await channel.close()

    async def get_stage(
        self,
        *,
        timeout: float | None = 10.0,  # noqa: ASYNC109 - a deadline that the server sees
        wait_for_ready: bool = False,
    ) -> stage_service_pb2.GetStageResponse:
        """Returns the entry stage's description. With wait_for_ready, waits up to timeout seconds for its server.

        Raises OmniRequestError; ArgumentError if timeout is not positive, or in another event loop.
        """
        async with self._borrow() as loan:
            try:
                response: stage_service_pb2.GetStageResponse = await _stub(loan.channel).GetStage(
                    stage_service_pb2.GetStageRequest(), timeout=check_timeout(timeout), wait_for_ready=wait_for_ready
                )
            except grpc.aio.AioRpcError as error:
                loan.unreached = is_unreached(error)
                raise error_from_rpc(error, target=self._target) from error
        return response

    def generate(self, **arguments: Unpack[GenerateArguments]) -> AsyncGenerator[Event, None]:
        """Run a request. Returns a generator of its events as they arrive. GenerateArguments documents the arguments.

        Give exactly one prompt: text, chat, raw_text, token_ids or prompt_embeds. Closing the generator cancels the
        call in all stages; to stop early, use `contextlib.aclosing`.
        Before Accepted, a call that fails with UNAVAILABLE, with RESOURCE_EXHAUSTED and RetryInfo, or with CANCELLED by
        the server is retried, with at most 3 attempts. After Accepted nothing is retried. Raises ArgumentError
        immediately, OmniRequestError while iterating.
        """
        call = prepare_call(arguments)
        return self._events(call.request, call.metadata, call.timeout_s)

    async def run(self, **arguments: Unpack[GenerateArguments]) -> GenerationResult:
        """Run a request to its end. Returns the complete answer. Takes the same arguments and raises the same errors as
        generate()."""
        builder = ResultBuilder()
        events = self.generate(**arguments)
        del arguments  # otherwise their media would stay in memory until the call ends
        try:
            async for event in events:
                builder.add(event)
        finally:
            await events.aclose()
        return builder.result()

    async def _events(
        self, prepared: PreparedRequest, metadata: Metadata, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        attempts = Attempts(timeout_s, target=self._target)
        affinity, tried = affinity_of(prepared.start), set[str]()
        while True:
            async with self._borrow(affinity, tried) as loan:
                gate = asyncio.Event()
                call = _stub(loan.channel).Generate(_write(prepared, gate), timeout=attempts.begin(), metadata=metadata)
                status = StatusKeeper(call)
                try:
                    async for response in call:
                        event = attempts.take(response)
                        self._pool.note_message(loan)
                        if not gate.is_set():
                            gate.set()
                            self._pool.note_report(loan, find_report(await call.initial_metadata()))
                            del prepared  # it is not sent again; without this, its media would stay in memory
                        if event is not None:
                            yield event
                    error = None
                except grpc.aio.AioRpcError as caught:
                    error = await status.unmask(caught)
                finally:
                    call.cancel()  # no effect on a call that has ended
                    gate.set()
                if error is None:
                    attempts.finish()
                    loan.complete, loan.report = True, find_report(await call.trailing_metadata())
                    return
                loan.unreached, loan.is_fault = attempts.is_unreached(error), attempts.is_fault(error)
                loan.report = find_report(error.trailing_metadata())
                tried.add(loan.pod)
                wait_s = attempts.fail(error, closed=self._pool.closed)
            await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _borrow(
        self, affinity: Affinity | None = None, tried: Collection[str] = ()
    ) -> AsyncIterator[Loan[grpc.aio.Channel]]:
        """Yields a channel for one call. Raises OmniRequestError if the client is closed, before or during the call;
        ArgumentError if this is not the event loop of the first call."""
        if self._pool.closed:
            raise closed_error()
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if self._loop is not loop:
            raise ArgumentError(
                "an AsyncOmniClient belongs to the event loop of its first call; make one in each event loop"
            )
        try:
            async with borrow_aio(self._pool, affinity, tried) as loan:
                yield loan
        except asyncio.CancelledError:
            # Closing a channel cancels its calls. To the caller this looks as if its own task had been cancelled.
            task = asyncio.current_task()
            if not self._pool.closed or (task is not None and task.cancelling()):
                raise
            raise closed_error() from None


def _stub(channel: grpc.aio.Channel) -> Any:
    return stage_service_pb2_grpc.StageServiceStub(channel)  # type: ignore[no-untyped-call]


async def _write(prepared: PreparedRequest, gate: asyncio.Event) -> AsyncGenerator[GenerateRequest, None]:
    """Yields Start, and the other messages once the gate is set (after Accepted): see attempts.py."""
    messages = prepared.messages()
    yield next(messages)
    await gate.wait()
    for message in messages:
        yield message
