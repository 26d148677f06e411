"""AsyncOmniClient: a pipeline as an asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from omni_proto.client.attempts import Attempts
from omni_proto.client.connection import ClientTls, plan_connection
from omni_proto.client.errors import closed_error, error_from_rpc
from omni_proto.client.events import Event
from omni_proto.client.media import ChatMessage
from omni_proto.client.request import GenerateOptions, PreparedRequest, Sampling, call_metadata, prepare_request
from omni_proto.client.result import GenerationResult, ResultBuilder
from omni_proto.client.timing import check_timeout
from omni_proto.rpc.aio_status import StatusKeeper
from omni_proto.rpc.channels import open_aio_channel
from omni_proto.rpc.options import Options
from omni_proto.rpc.pool import ChannelPool, Loan, borrow_aio
from omni_proto.rpc.retry import is_unreached
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest

if TYPE_CHECKING:
    from typing_extensions import Buffer

Metadata = tuple[tuple[str, str | bytes], ...]


class AsyncOmniClient:
    """Calls the entry stage of a pipeline. Use as an async context manager, or call close().

    target is a gRPC target, e.g. "localhost:50051" or "dns:///qwen.default.svc.cluster.local.:50051", or the url of a
    pipeline's status: grpc://HOST:PORT, grpcs://HOST:PORT for TLS. tls makes any target TLS: True trusts the public
    CAs, ClientTls names others. credentials are gRPC's own, instead. options replace
    channel_options(), less what keeps gRPC from crashing. Raises ArgumentError.
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
        self._pool = ChannelPool(
            partial(open_aio_channel, plan.target, credentials=plan.credentials, options=plan.options)
        )

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
        """What the entry stage is. wait_for_ready waits, up to timeout seconds, for a server that is not up yet.

        Raises OmniRequestError.
        """
        async with self._borrow() as loan:
            try:
                response: stage_service_pb2.GetStageResponse = await _stub(loan.channel).GetStage(
                    stage_service_pb2.GetStageRequest(), timeout=check_timeout(timeout), wait_for_ready=wait_for_ready
                )
            except grpc.aio.AioRpcError as error:
                loan.unreached = is_unreached(error)
                raise error_from_rpc(error) from error
        return response

    def generate(
        self,
        *,
        text: str | None = None,
        chat: str | ChatMessage | Sequence[ChatMessage] | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_embeds: Buffer | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        modalities: Sequence[str] = (),
        voice: str = "",
        encoding: str = "pcm_s16le",
        include_token_ids: bool = False,
        include_codec_tokens: bool = False,
        include_timings: bool = False,
        allow_partial: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        timeout: float | None = None,
        request_id: str | None = None,
        traceparent: str | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[Event, None]:
        """Run a request; its events as they come. Exactly one of text, chat, token_ids and prompt_embeds.

        prompt_embeds: a C-contiguous buffer [rows, hidden size] such as a numpy array, float32 or float16, or uint16
        with the bits of bfloat16. It needs google-crc32c and a stage that takes embeddings (get_stage().prompt_embeds).
        priority: -1000 to 1000, lower is served earlier. cache_salt: cached prefixes are shared only within a salt.

        timeout bounds all attempts together, in seconds; None leaves it to the pipeline. Closing the generator cancels
        the call and all stages: leave early through `contextlib.aclosing`. Before Accepted, UNAVAILABLE,
        RESOURCE_EXHAUSTED with RetryInfo and a server's own CANCELLED are tried again, 3 times in all; after it nothing
        is. Raises ArgumentError at once, OmniRequestError while iterating.
        """
        options = GenerateOptions(
            sampling=sampling,
            seed=seed,
            modalities=modalities,
            voice=voice,
            encoding=encoding,
            include_token_ids=include_token_ids,
            include_codec_tokens=include_codec_tokens,
            include_timings=include_timings,
            allow_partial=allow_partial,
            priority=priority,
            cache_salt=cache_salt,
        )
        prepared = prepare_request(
            text=text, chat=chat, token_ids=token_ids, prompt_embeds=prompt_embeds, options=options
        )
        headers = call_metadata(request_id, traceparent, metadata)
        return self._events(prepared, headers, check_timeout(timeout))

    async def run(self, **arguments: Any) -> GenerationResult:
        """Run a request to its end: arguments and errors of generate()."""
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
        attempts = Attempts(timeout_s)
        while True:
            async with self._borrow() as loan:
                gate = asyncio.Event()
                call = _stub(loan.channel).Generate(_write(prepared, gate), timeout=attempts.begin(), metadata=metadata)
                status = StatusKeeper(call)
                try:
                    async for response in call:
                        event = attempts.take(response)
                        gate.set()
                        if event is not None:
                            yield event
                    error = None
                except grpc.aio.AioRpcError as caught:
                    error = await status.unmask(caught)
                finally:
                    call.cancel()  # no effect on a call that is over
                    gate.set()
                if error is None:
                    attempts.finish()
                    return
                loan.unreached = attempts.is_unreached(error)
                wait_s = attempts.fail(error, closed=self._pool.closed)
            await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Loan[grpc.aio.Channel]]:
        """Lends a channel for one call. Raises OmniRequestError if the client is closed, or is meanwhile."""
        if self._pool.closed:
            raise closed_error()
        try:
            async with borrow_aio(self._pool) as loan:
                yield loan
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, which looks as if the caller's own task had been cancelled.
            task = asyncio.current_task()
            if not self._pool.closed or (task is not None and task.cancelling()):
                raise
            raise closed_error() from None


def _stub(channel: grpc.aio.Channel) -> Any:
    return stage_service_pb2_grpc.StageServiceStub(channel)  # type: ignore[no-untyped-call]


async def _write(prepared: PreparedRequest, gate: asyncio.Event) -> AsyncGenerator[GenerateRequest, None]:
    """Start, and the rest once the gate opens, which is when the client saw Accepted: see attempts.py."""
    messages = prepared.messages()
    yield next(messages)
    await gate.wait()
    for message in messages:
        yield message
