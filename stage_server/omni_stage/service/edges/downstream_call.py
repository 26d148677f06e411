"""One call to one downstream stage: sends rows and receives events.

The call of a Full edge opens when the first rows must be sent, or when the request's rows end if there are none. The
call of a Stream edge opens while the engine begins to work on the request. The queue of rows needs no bound of its own,
because admission reserved their bytes. Before the downstream stage's Accepted, only Start is sent, so a retry never
sends rows twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import grpc
from google.rpc import status_pb2

from omni_proto.rpc.retry import compute_retry_wait_s
from omni_proto.rpc.status import StatusKeeper, read_status
from omni_proto.stage.v1 import events_pb2, stage_service_pb2, tensors_pb2
from omni_proto.stage_config import DownstreamStage, EdgeMode
from omni_proto.tensors import TensorSchema, schema_hash, tensor_prompt
from omni_stage.errors import DownstreamProtocolError, ModelExecutionError
from omni_stage.exchange import Array
from omni_stage.service.edges.channels import Deadline, DownstreamChannels, OpenCall, downstream_timeout
from omni_stage.service.edges.downstream_protocol import DownstreamProtocol, explain_failure
from omni_stage.service.edges.outbox import ALIVE_S, Outbox, Pacing
from omni_stage.service.edges.output import EdgeWriter
from omni_stage.service.errors import RelayedError, first_error
from omni_stage.service.metering import StageMetrics
from omni_stage.service.wire import OutgoingChunk

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Sent = tuple[bool, "events_pb2.FinishReason | None"]
_Relay = Callable[[stage_service_pb2.GenerateResponse], Awaitable[None]]


class Started(Generic[_T]):
    """The constructor runs a coroutine up to its first wait. Await the object once, in a task, to run the rest. A task
    would begin in the event loop's next iteration, after all callbacks that are ready.

    The part before the first wait runs in no task of its own, so it must not use asyncio.timeout or
    asyncio.current_task. From Python 3.12 on, an eager task also begins immediately.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self._waits_for: Any = None
        self._result: list[_T] = []
        self._error: BaseException | None = None
        try:
            self._waits_for = coroutine.send(None)
        except StopIteration as over:
            self._result.append(over.value)
        except Exception as error:  # noqa: BLE001 - raised by __await__
            self._error = error

    def __await__(self) -> Generator[Any, Any, _T]:
        """Returns the coroutine's result, or raises its error. A cancellation reaches the coroutine."""
        if self._error is not None:
            raise self._error
        if self._result:
            return self._result[0]
        waits_for = self._waits_for
        while True:
            thrown: BaseException | None = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - the coroutine gets it
                thrown = error
            try:
                waits_for = self._coroutine.send(None) if thrown is None else self._coroutine.throw(thrown)
            except StopIteration as over:
                return cast("_T", over.value)

    def close(self) -> None:
        """End the coroutine where it waits, if it has not ended."""
        self._coroutine.close()


@dataclass(frozen=True, slots=True)
class EdgeContext:
    """What all downstream calls of one request share."""

    pipeline: str
    source_stage: str
    component: str
    """Id of the component that publishes the rows."""
    schema: TensorSchema
    early_steps: int
    row_plays_s: float
    """See Pacing."""
    request_id: str
    metadata: tuple[tuple[str, str], ...]
    deadline: Deadline
    channels: DownstreamChannels
    metrics: StageMetrics
    relay: _Relay
    """Sends a message of the downstream stage to the caller."""


class EdgeCall:
    """The call to one downstream stage of one request. `feed` and `finish` never block; `run` does the work."""

    def __init__(self, edge: DownstreamStage, start: stage_service_pb2.Start, context: EdgeContext) -> None:
        self.edge = edge
        self.bytes_sent = 0
        self.transfer_start: int | None = None
        """time.monotonic_ns() of the first chunk."""
        self.transfer_end: int | None = None
        """time.monotonic_ns() after the last chunk was written."""
        self.opened = False
        self._start = start
        self._context = context
        self._outbox = Outbox(context.channels, Pacing(self.opens_early, context.early_steps, context.row_plays_s))
        self._writer = EdgeWriter(context.schema)
        self._count = context.metrics.chunk_counter(edge.stage)
        self._sending: Any = None
        """The gRPC call while its sender runs."""
        self._batch: Started[_Sent] | None = None
        """The rows that are being sent."""
        self._settled = asyncio.Event()
        self._max_rows = 0
        self._fed = dict.fromkeys(context.schema.names, 0)
        """Number of rows of each tensor that `feed` got."""
        self._protocol = DownstreamProtocol(edge.stage, edge.stages)
        self._keeper: StatusKeeper | None = None
        self._call: OpenCall | None = None
        self._responses: AsyncIterator[Any] | None = None

    @property
    def opens_early(self) -> bool:
        """Whether the call opens before rows exist, while the engine begins the request: true for Stream edges."""
        return self.edge.mode is EdgeMode.STREAM

    async def open(self, max_rows: int) -> None:
        """Open the call before rows exist. At most max_rows rows of each tensor will follow. Raises as `run` does.

        If the engine makes rows meanwhile, this method begins to send them before it returns. After that, `feed` itself
        begins to send the rows of the request's first steps.
        """
        self._max_rows = max_rows
        try:
            call, _ = await self._open()
        except (RelayedError, DownstreamProtocolError):
            self._context.channels.note_refused(self.edge.stage)
            raise
        self._sending = call
        if self._outbox.is_due:
            # Begin here, because the sender's task starts some iterations of the event loop later, and the first audio
            # needs these rows.
            self._begin(call)

    @property
    def is_trusted(self) -> bool:
        """Whether the downstream stage will probably accept the request."""
        return self._context.channels.is_trusted(self.edge.stage)

    def close(self) -> None:
        """End the call, if it is open, and stop sending rows. Idempotent."""
        self._sending = None
        self._outbox.close()
        if self._batch is not None:
            self._batch.close()
        if self._call is not None:
            self._call.end()

    def feed(self, tensors: Mapping[str, Array], max_rows: int, complete: frozenset[str] = frozenset()) -> None:
        """Queue the next rows. If the call is not open yet, its Start announces the max_rows of the first `feed`.

        `complete`: tensors that end with these rows. Raises ModelExecutionError for more rows than were announced.
        """
        if self._settled.is_set():
            # The downstream stage needs no more rows.
            return
        self._max_rows = self._max_rows or max_rows
        self._count_rows(tensors)
        if self._outbox.put(tensors, complete) and self._sending is not None and self._batch is None:
            # Begin to send here, because the sender's task runs after all other tasks that this engine step woke. Rows
            # of later steps are left to the sender's task: sending them here would delay the step's texts.
            self._begin(self._sending)

    def _count_rows(self, tensors: Mapping[str, Array]) -> None:
        for name, array in tensors.items():
            fed = self._fed[name] = self._fed.get(name, 0) + (array.shape[0] if array.ndim else 0)
            if fed > self._max_rows:
                raise ModelExecutionError(
                    f"component {self._context.component} published {fed} rows of tensor {name!r} for a request, at "
                    f"most {self._max_rows} were announced; its rows_per_position or max_rows is too low"
                )

    def finish(self, reason: events_pb2.FinishReason, max_rows: int) -> None:
        """Queue the end of the rows."""
        self._max_rows = self._max_rows or max_rows
        self._outbox.end(reason)

    async def wait_sent(self) -> None:
        """Wait until all rows and End were sent, or the call has ended for another reason."""
        await self._settled.wait()

    async def run(self, accepted: asyncio.Event) -> None:
        """Open the call, send rows and relay responses. The call has ended when this returns or raises.

        `accepted`: set once this stage has accepted the request. Rows may be sent before that, but responses are read
        only after it. Each response is relayed before the next one is read, so a caller that reads slowly slows the
        downstream stage down. Raises RelayedError with the failing stage's status, DownstreamProtocolError,
        DeadlineExceededError.
        """
        try:
            if self._call is None:
                await self._outbox.wait()
            call, responses = await self._open()
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send(call))
                await accepted.wait()
                await self._relay(responses)
                # The downstream stage has finished; it may not have needed all rows.
                sender.cancel()
        except BaseExceptionGroup as error:
            raise first_error(error) from None
        finally:
            self._settled.set()
            self.close()

    async def _open(self) -> tuple[Any, AsyncIterator[Any]]:
        """Returns an accepted call and the responses after Accepted. Opens the call if it is not open yet.

        Makes up to 3 attempts, which is safe because a failed attempt has sent only Start.
        """
        if self._call is not None and self._responses is not None:
            return self._call.call, self._responses
        request = stage_service_pb2.GenerateRequest(start=self._complete_start())
        self.opened = True
        attempt, tried = 0, set[str]()
        while True:
            attempt += 1
            timeout = downstream_timeout(self._context.deadline.remaining(time.monotonic()), self.edge.stage)
            opened = self._context.channels.generate(
                self.edge.stage, timeout=timeout, metadata=self._context.metadata, avoid=tried
            )
            self._keeper = StatusKeeper(opened.call)
            # Iterate instead of calling read(), which loses messages after a failed write (see StatusKeeper).
            responses = aiter(opened.call)
            accepted = False
            try:
                await _write(opened.call, request)
                await self._relay_one(await anext(responses, None))
                accepted = True
                self._call, self._responses = opened, responses
                await opened.note_accepted()
                return opened.call, responses
            except grpc.aio.AioRpcError as raised:
                error = await self._keeper.unmask(raised)
                if error is None:
                    raise self._ended_early() from raised
                opened.note_failed(error, accepted=False)
                tried.add(opened.pod)
                wait_s = self._wait_or_raise(error, attempt)
            finally:
                if not accepted:
                    opened.end()
            await asyncio.sleep(wait_s)

    def _complete_start(self) -> stage_service_pb2.Start:
        start = stage_service_pb2.Start()
        start.CopyFrom(self._start)
        schema = self._context.schema
        start.edge_schema_hash = schema_hash(schema)
        limits = [(name, self._max_rows) for name in schema.names]
        start.tensors.CopyFrom(tensor_prompt(schema, self._context.source_stage, limits))
        return start

    def _wait_or_raise(self, error: grpc.aio.AioRpcError, attempt: int) -> float:
        """Returns the seconds to wait before the next attempt. Raises RelayedError if no attempt is left."""
        status = self._failed(error)
        wait_s = compute_retry_wait_s(
            read_status(status),
            attempt=attempt,
            remaining_s=self._context.deadline.remaining(time.monotonic()),
            jitter=random.random(),  # noqa: S311
        )
        if wait_s is None:
            raise RelayedError(status) from error
        _log.info(
            "retrying the downstream call",
            extra={"peer": self.edge.stage, "code": error.code().name, "attempt": attempt},
        )
        return wait_s

    def _failed(self, error: grpc.aio.AioRpcError) -> status_pb2.Status:
        """Count a failed call. Returns the status to report for it."""
        self._context.metrics.downstream_error(self.edge.stage, error.code().name)
        return explain_failure(
            error, pipeline=self._context.pipeline, stage=self.edge.stage, request_id=self._context.request_id
        )

    async def _send(self, call: Any) -> None:
        """Send rows when they are due, then End."""
        self._sending = call
        reason: events_pb2.FinishReason | None = None
        try:
            while reason is None:
                if self._batch is None:
                    is_due = await self._is_due()
                    if self._batch is None and not is_due:
                        # As a batch, so that `feed` does not write at the same time.
                        self._batch = Started(_send_alive(call))
                batch = self._batch or self._begin(call)
                sent, reason = await batch
                self._batch = None
                if not sent:
                    return
        finally:
            # `close`, which follows, ends a batch that is still being sent.
            self._sending = None
        self.transfer_end = time.monotonic_ns()
        self._context.metrics.tensors_sent(self.edge.stage, len(self._context.schema.names))
        done = stage_service_pb2.End(upstream_finish_reason=reason)
        if await _write(call, stage_service_pb2.GenerateRequest(end=done)):
            await call.done_writing()
        self._settled.set()

    async def _is_due(self) -> bool:
        """Wait until rows or the end are due, but for at most ALIVE_S seconds. Returns whether they are due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await self._outbox.wait()
        return self._outbox.is_due

    def _begin(self, call: Any) -> Started[_Sent]:
        batch = self._batch = Started(self._send_batch(call))
        return batch

    async def _send_batch(self, call: Any) -> _Sent:
        """Send queued rows. Returns whether the call takes more messages, and the finish reason if no rows follow."""
        steps, complete, reason = self._outbox.take()
        for message in self._writer.encode(steps, last=reason is not None, complete=complete):
            began = time.monotonic_ns()
            self.transfer_start = self.transfer_start or began
            if not await _write(call, message):
                return False, reason
            self.bytes_sent += message.data_bytes
            self._count(message.data_bytes, (time.monotonic_ns() - began) / 1e9)
        return True, reason

    async def _relay(self, responses: AsyncIterator[Any]) -> None:
        opened = self._call
        try:
            async for response in responses:
                if opened is not None:
                    opened.note_message()
                await self._relay_one(response)
        except grpc.aio.AioRpcError as raised:
            error = await self._keeper.unmask(raised) if self._keeper else raised
            if error is not None:
                if opened is not None:
                    opened.note_failed(error, accepted=True)
                raise RelayedError(self._failed(error)) from raised
        self._protocol.finish()
        if opened is not None:
            await opened.note_complete()

    async def _relay_one(self, response: Any) -> None:
        if response is None:
            raise self._ended_early()
        self._protocol.check(response)
        await self._context.relay(response)

    def _ended_early(self) -> DownstreamProtocolError:
        return DownstreamProtocolError(f"stage {self.edge.stage!r} ended its call before Accepted")


async def _send_alive(call: Any) -> _Sent:
    """Send a message without rows: it says that rows follow. Returns as EdgeCall._send_batch does."""
    alive = stage_service_pb2.GenerateRequest(tensors=tensors_pb2.TensorChunks())
    return await _write(call, alive), None


async def _write(call: Any, message: stage_service_pb2.GenerateRequest | OutgoingChunk) -> bool:
    """Write a message. Returns False if the call has ended; reading from it then shows why."""
    try:
        await call.write(message)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True
