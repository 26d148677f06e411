"""One call to one downstream stage: rows go down, events come back.

A Full edge's call opens when the first rows exist, a Stream edge's before the engine starts. Rows queue here without
bound of their own: admission reserved their bytes. Nothing but Start is sent before Accepted, so a retry repeats
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import torch

from omni_proto.aio_status import StatusKeeper
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.stage_config import DownstreamStage, EdgeMode
from omni_proto.tensors import TensorSchema, schema_hash, tensor_prompt
from omni_stage.errors import DownstreamProtocolError
from omni_stage.service.deadlines import Deadline, downstream_timeout
from omni_stage.service.edges.channels import DownstreamChannels
from omni_stage.service.edges.downstream_protocol import DownstreamProtocol, is_retryable, status_of_call
from omni_stage.service.edges.output import EdgeWriter
from omni_stage.service.errors import RelayedError, first_error, retry_delay_s
from omni_stage.service.metrics import StageMetrics
from omni_stage.service.wire import OutgoingChunk

MAX_ATTEMPTS = 3
BACKOFF_S = 0.3
MAX_BACKOFF_S = 2.0
MAX_COALESCED = 16
"""Engine steps whose rows travel in one message, if they queue."""

_log = logging.getLogger(__name__)
_Relay = Callable[[stage_service_pb2.GenerateResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """What the calls of one request have in common."""

    source_stage: str
    schema: TensorSchema
    request_id: str
    metadata: tuple[tuple[str, str], ...]
    deadline: Deadline
    channels: DownstreamChannels
    metrics: StageMetrics
    relay: _Relay
    """Sends a message of the downstream stage to the caller."""


@dataclass(frozen=True, slots=True)
class _Rows:
    tensors: Mapping[str, torch.Tensor]
    complete: frozenset[str]


@dataclass(frozen=True, slots=True)
class _End:
    reason: events_pb2.FinishReason


class EdgeCall:
    """The call to one downstream stage of one request. `feed` and `finish` never block; `run` does the work."""

    def __init__(self, edge: DownstreamStage, start: stage_service_pb2.Start, context: EdgeContext) -> None:
        self.edge = edge
        self.bytes_sent = 0
        self.transfer_start: int | None = None
        """time.monotonic_ns() of the first chunk."""
        self.transfer_end: int | None = None
        """time.monotonic_ns() when the call took the last chunk."""
        self.opened = False
        self._start = start
        self._context = context
        self._queue: asyncio.Queue[_Rows | _End] = asyncio.Queue()
        self._settled = asyncio.Event()
        self._max_rows = 0
        self._protocol = DownstreamProtocol(edge.stage, edge.stages)
        self._keeper: StatusKeeper | None = None
        self._call: tuple[Any, AsyncIterator[Any]] | None = None

    @property
    def opens_early(self) -> bool:
        """Whether the downstream stage starts before this one has ended."""
        return self.edge.mode is EdgeMode.STREAM

    async def open(self, max_rows: int) -> None:
        """Open the call before rows exist; at most max_rows of each tensor will come. Raises as `run` does."""
        self._max_rows = max_rows
        self._call = await self._open()

    def close(self) -> None:
        """End the call, if it is open. Idempotent."""
        if self._call is not None:
            self._call[0].cancel()

    def feed(self, tensors: Mapping[str, torch.Tensor], max_rows: int, complete: frozenset[str] = frozenset()) -> None:
        """Send rows after those before; max_rows of the first feed is announced, unless the call is open already.

        `complete`: tensors of which no more rows come.
        """
        if self._settled.is_set():
            # The stage needed no more.
            return
        self._max_rows = self._max_rows or max_rows
        self._queue.put_nowait(_Rows(tensors, complete))

    def finish(self, reason: events_pb2.FinishReason, max_rows: int) -> None:
        """No more rows."""
        self._max_rows = self._max_rows or max_rows
        self._queue.put_nowait(_End(reason))

    async def wait_sent(self) -> None:
        """Wait until everything was sent, or the call ended otherwise."""
        await self._settled.wait()

    async def run(self) -> None:
        """Open, send, relay. Raises RelayedError with the failing stage's status, DownstreamProtocolError,
        DeadlineExceededError. The call is over when this returns, however it does."""
        try:
            first = None
            if self._call is None:
                first = await self._queue.get()
                self._call = await self._open()
            call, responses = self._call
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send(call, first))
                await self._relay(responses)
                # The stage ended by itself; it may have needed less than all rows.
                sender.cancel()
        except BaseExceptionGroup as error:
            raise first_error(error) from None
        finally:
            self._settled.set()
            self.close()

    async def _open(self) -> tuple[Any, AsyncIterator[Any]]:
        """A call that is accepted, and its further responses. Tries up to 3 times, as long as nothing but Start was
        sent."""
        start = stage_service_pb2.Start()
        start.CopyFrom(self._start)
        schema = self._context.schema
        start.edge_schema_hash = schema_hash(schema)
        limits = [(name, self._max_rows) for name in schema.names]
        start.tensors.CopyFrom(tensor_prompt(schema, self._context.source_stage, limits))
        request = stage_service_pb2.GenerateRequest(start=start)
        self.opened = True
        for attempt in range(1, MAX_ATTEMPTS + 1):
            timeout = downstream_timeout(self._context.deadline.remaining(time.monotonic()), self.edge.stage)
            call = self._context.channels.generate(self.edge.stage, timeout=timeout, metadata=self._context.metadata)
            self._keeper = StatusKeeper(call)
            # Iterated, not read(): read() leaves messages behind once a write has failed (StatusKeeper).
            responses = aiter(call)
            accepted = False
            try:
                await _write(call, request)
                await self._relay_one(await anext(responses, None))
                accepted = True
                return call, responses
            except grpc.aio.AioRpcError as raised:
                error = await self._keeper.unmask(raised)
                if error is None:
                    raise self._ended_early() from raised
                delay = self._next_delay(error, attempt)
            finally:
                if not accepted:
                    call.cancel()
            await asyncio.sleep(delay)
        raise DownstreamProtocolError(f"stage {self.edge.stage!r} was not called")

    def _next_delay(self, error: grpc.aio.AioRpcError, attempt: int) -> float:
        """Seconds to wait before the next attempt. Raises RelayedError if there is none."""
        status, code = status_of_call(error, stage=self.edge.stage, request_id=self._context.request_id)
        self._context.metrics.downstream_error(self.edge.stage, code.name)
        asked = retry_delay_s(status)
        backoff = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (attempt - 1))
        delay = min(MAX_BACKOFF_S, asked if asked is not None else backoff) * random.uniform(0.8, 1.2)  # noqa: S311
        in_time = self._context.deadline.remaining(time.monotonic()) > delay
        if attempt == MAX_ATTEMPTS or not is_retryable(status) or not in_time:
            raise RelayedError(status) from error
        _log.info(
            "retrying the downstream call", extra={"peer": self.edge.stage, "code": code.name, "attempt": attempt}
        )
        return delay

    async def _send(self, call: Any, first: _Rows | _End | None) -> None:
        writer = EdgeWriter(self._context.schema)
        item = first
        while True:
            batch, end = self._drain(item if item is not None else await self._queue.get())
            complete = frozenset[str]().union(*(rows.complete for rows in batch))
            steps = [rows.tensors for rows in batch]
            for message in writer.encode(steps, last=end is not None, complete=complete):
                if self.transfer_start is None:
                    self.transfer_start = time.monotonic_ns()
                began = time.perf_counter()
                if not await _write(call, message):
                    return
                self.bytes_sent += message.data_bytes
                self._context.metrics.chunk_sent(self.edge.stage, message.data_bytes, time.perf_counter() - began)
            if end is not None:
                self.transfer_end = time.monotonic_ns()
                self._context.metrics.tensors_sent(self.edge.stage, len(self._context.schema.names))
                done = stage_service_pb2.End(upstream_finish_reason=end.reason)
                if await _write(call, stage_service_pb2.GenerateRequest(end=done)):
                    await call.done_writing()
                self._settled.set()
                return
            item = None

    def _drain(self, item: _Rows | _End) -> tuple[list[_Rows], _End | None]:
        """What is queued, up to MAX_COALESCED items, and the end if it came."""
        batch: list[_Rows] = []
        while isinstance(item, _Rows):
            batch.append(item)
            if len(batch) >= MAX_COALESCED or self._queue.empty():
                return batch, None
            item = self._queue.get_nowait()
        return batch, item

    async def _relay(self, responses: AsyncIterator[Any]) -> None:
        try:
            async for response in responses:
                await self._relay_one(response)
        except grpc.aio.AioRpcError as raised:
            error = await self._keeper.unmask(raised) if self._keeper else raised
            if error is not None:
                status, code = status_of_call(error, stage=self.edge.stage, request_id=self._context.request_id)
                self._context.metrics.downstream_error(self.edge.stage, code.name)
                raise RelayedError(status) from raised
        self._protocol.finish()

    async def _relay_one(self, response: Any) -> None:
        if response is None:
            raise self._ended_early()
        self._protocol.check(response)
        await self._context.relay(response)

    def _ended_early(self) -> DownstreamProtocolError:
        return DownstreamProtocolError(f"stage {self.edge.stage!r} ended its call before Accepted")


async def _write(call: Any, message: stage_service_pb2.GenerateRequest | OutgoingChunk) -> bool:
    """Write, or say False if the call is over: then reading tells why."""
    try:
        await call.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True
