"""One admitted request: turns the engine's steps into events for the caller and rows for the downstream stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Final

from omni_proto.errors import OmniProtoError
from omni_proto.rpc.rich_status import read_status
from omni_proto.stage.v1 import events_pb2
from omni_proto.stage_config import Modality
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import EngineDeadStageError, ModelExecutionError
from omni_stage.models.component import FinishReason, ServedComponent, StageRequest, StageStep
from omni_stage.service.edges.downstream_call import EdgeCall
from omni_stage.service.errors import first_error, to_status
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.audio import AudioEncoder
from omni_stage.service.request.planning.plan import RequestPlan, bound_rows
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.tracing import Timeline

_log = logging.getLogger(__name__)
ACCEPT_WRITE_S: Final = 0.5
"""Maximum number of seconds for which the end of a call may be delayed until Accepted is written."""
_FINISH_REASONS = {
    FinishReason.STOP: events_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: events_pb2.FINISH_REASON_LENGTH,
    FinishReason.DIFFUSION_DONE: events_pb2.FINISH_REASON_DIFFUSION_DONE,
    FinishReason.EMPTY_INPUT: events_pb2.FINISH_REASON_EMPTY_INPUT,
}


class Reads(StrEnum):
    """When the input is read."""

    BEFORE = "before"
    """The input is read to its end before the engine starts."""
    BESIDE = "beside"
    """The input is read to its end while the engine runs: Start had all that the engine needs, and only End follows."""
    WHILE_NEEDED = "while_needed"
    """The input is read while the engine runs. The engine may end before the input does."""


class RequestRun:
    """The work of one request in one stage, from its admission to StageFinished."""

    def __init__(
        self,
        *,
        stage: str,
        request_id: str,
        plan: RequestPlan,
        engine: StageEngine,
        calls: Sequence[EdgeCall],
        writer: ResponseWriter,
        timeline: Timeline,
        metrics: StageMetrics,
    ) -> None:
        self._stage = stage
        self._request_id = request_id
        self._plan = plan
        self._engine = engine
        self._component = engine.component
        self._calls = list(calls)
        self._writer = writer
        self._timeline = timeline
        self._metrics = metrics
        self._audio = AudioEncoder(plan.encoding, self._component.facts.sample_rate_hz)
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._sends_text = Modality.TEXT in plan.own
        self._sends_audio = Modality.AUDIO in plan.own
        self._sends_tokens = _wants_tokens(plan, self._component)
        self._rows_bound = plan.output_rows
        self._accepted = asyncio.Event()
        self._all_open = asyncio.Event()
        """Set once no call of a Stream edge is still being opened."""
        self._opening = sum(call.opens_early for call in calls)
        if not self._opening:
            self._all_open.set()

    async def _accept(self, accept: Callable[[], Awaitable[None]]) -> None:
        """Send Accepted once the stage of each Stream edge has accepted, or has failed under allow_partial."""
        await self._all_open.wait()
        # gRPC cannot end a call while a write is in progress, so a failure waits until this write is done.
        writing = asyncio.ensure_future(accept())
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait([writing], timeout=ACCEPT_WRITE_S)
            if not done:
                # The client accepts no bytes, so it would not get a status either.
                writing.cancel()
            elif writing.exception() is not None:
                _log.debug("Accepted was not written: the call had ended")
            raise
        self._accepted.set()

    async def _open(self, call: EdgeCall) -> bool:
        """Open a Stream edge's call. Under allow_partial, reports a failure and returns False instead of raising."""
        try:
            await call.open(self._rows_bound)
        except OmniProtoError as error:
            if not self._plan.allow_partial:
                raise
            self._calls.remove(call)
            await self._report(error, call.edge.stage)
        self._opening -= 1
        if not self._opening:
            self._all_open.set()
        return call in self._calls

    def close(self) -> None:
        """End all open downstream calls. Idempotent."""
        for call in self._calls:
            call.close()

    async def execute(
        self,
        build: Callable[[], Awaitable[StageRequest]],
        accept: Callable[[], Awaitable[None]],
        read: Callable[[], Awaitable[None]],
        reads: Reads,
    ) -> None:
        """Run the engine on the request that `build` returns, and the downstream calls, until all have ended.

        `accept` sends Accepted to the caller, after the stages of Stream edges have accepted the request. The engine
        starts earlier, with two exceptions: it waits for Accepted if it needs the complete input first (Reads.BEFORE),
        and if a stage of a Stream edge refused a request recently, so that the engine does no useless work. The
        engine's rows are sent to the stage of a Stream edge as soon as that stage accepts. All other output is sent
        after Accepted. `read` reads the input up to its end.

        Ends everything at the first failure, and raises it. With allow_partial, a failure becomes a StageFailed event
        instead, and the other stages continue if they can.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept(accept))
                tasks = {group.create_task(self._run_call(call)): call for call in self._calls}
                reading = group.create_task(self._read(read))
                try:
                    if reads is Reads.BEFORE:
                        await reading
                    if not all(call.is_trusted for call in self._calls if call.opens_early):
                        await self._accepted.wait()
                    request = await build()
                    last = await self._run_engine(request)
                    if reads is Reads.WHILE_NEEDED:
                        reading.cancel()
                    else:
                        await reading
                    await self._accepted.wait()
                    await self._finish(last, request.notes)
                except OmniProtoError as error:
                    # A dead engine ends all calls of the stage, whether the watchdog or this request notices it first.
                    if not self._plan.allow_partial or isinstance(error, EngineDeadStageError):
                        raise
                    reading.cancel()
                    await self._accepted.wait()
                    async with self._writer.quiet:
                        for task, call in tasks.items():
                            task.cancel()
                            if call.opened and call in self._calls:
                                self._writer.note_cancelled(call.edge.stage)
                    await self._report(error, self._stage)
        except BaseExceptionGroup as group_error:
            raise first_error(group_error) from None

    async def _read(self, read: Callable[[], Awaitable[None]]) -> None:
        await self._accepted.wait()
        await read()

    async def _run_call(self, call: EdgeCall) -> None:
        if call.opens_early and not await self._open(call):
            return
        try:
            await call.run(self._accepted)
        except OmniProtoError as error:
            if not self._plan.allow_partial:
                raise
            await self._report(error, call.edge.stage)

    async def _report(self, error: OmniProtoError, stage: str) -> None:
        status = to_status(error, stage=stage, request_id=self._request_id)
        reason = read_status(status).reason
        _log.warning("a stage failed; the request continues without it", extra={"reason": reason})
        await self._writer.send_failed(status, stage)

    async def _run_engine(self, request: StageRequest) -> StageStep:
        """Process the engine's steps. Returns the last step."""
        self._timeline.engine_submitted = self._timeline.now()
        last: StageStep | None = None
        # However this function ends, closing the iterator makes the engine abort the request.
        async with aclosing(self._engine.generate(request)) as steps:
            async for step in steps:
                await self._on_step(step)
                last = step
        if last is None or last.finish_reason is None:
            raise ModelExecutionError(f"the engine of stage {self._stage!r} ended the request without a finish reason")
        return last

    async def _on_step(self, step: StageStep) -> None:
        timeline = self._timeline
        now = timeline.now()
        timeline.first_output = timeline.first_output or now
        timeline.last_output = now
        if step.scheduled_ns is not None and not timeline.engine_scheduled:
            timeline.engine_scheduled = timeline.since(step.scheduled_ns)
            if step.submitted_ns is not None:
                # The engine was called before its input arrived. That wait does not count as time in its queue.
                timeline.engine_submitted = timeline.since(step.submitted_ns)
        if self._plan.include.timings:
            timeline.steps.append(now)
        if step.prompt_token_ids is not None:
            self._on_prompt(len(step.prompt_token_ids))
        self._completion_tokens += len(step.token_ids)
        if step.tensors:
            for call in self._calls:
                call.feed(step.tensors, self._rows_bound, step.complete_tensors)
        if not self._accepted.is_set():
            await self._accepted.wait()
        # Send in the order in which a model writes: a step of several tokens may hold reasoning, text and tool calls.
        if step.reasoning and self._sends_text:
            await self._writer.send(reasoning=events_pb2.ReasoningDelta(text=step.reasoning))
        if step.text and self._sends_text:
            await self._writer.send_text(step.text)
        if step.tool_calls and self._sends_text:
            await self._send_calls(step)
        if self._sends_tokens and (step.token_ids or step.prompt_token_ids):
            await self._send_tokens(step)
        if self._sends_audio:
            for chunk in self._audio.encode(step.audio, last=step.finish_reason is not None):
                timeline.first_audio = timeline.first_audio or timeline.now()
                await self._writer.send(audio=chunk)

    def _on_prompt(self, tokens: int) -> None:
        self._prompt_tokens = tokens
        # With the prompt's exact length, announce no more rows than the request needs, because downstream stages
        # reserve bytes for all announced rows.
        exact = bound_rows(tokens, self._plan.sampling.max_tokens, self._engine.max_model_len)
        self._rows_bound = min(self._rows_bound, exact)

    async def _send_tokens(self, step: StageStep) -> None:
        # For embeddings the engine reports zeros instead of token ids.
        has_ids = self._component.facts.writes_text and not (self._plan.prompt and self._plan.prompt.embeds)
        prompt = step.prompt_token_ids if has_ids else None
        await self._writer.send(tokens=events_pb2.TokenDelta(ids=step.token_ids, prompt_ids=prompt or ()))

    async def _send_calls(self, step: StageStep) -> None:
        for piece in step.tool_calls:
            delta = events_pb2.ToolCallDelta(index=piece.index, id=piece.id, name=piece.name, arguments=piece.arguments)
            await self._writer.send(tool_call=delta)

    async def _finish(self, last: StageStep, notes: Sequence[str]) -> None:
        """Wait until the rows are sent, then report the end of this stage's own work."""
        if last.finish_reason is None:
            raise ModelExecutionError(f"stage {self._stage!r} has no finish reason")
        reason = _FINISH_REASONS[last.finish_reason]
        for call in self._calls:
            call.finish(reason, self._rows_bound)
        for call in self._calls:
            await call.wait_sent()
        timeline = self._timeline
        starts = [call.transfer_start for call in self._calls if call.transfer_start is not None]
        ends = [call.transfer_end for call in self._calls if call.transfer_end is not None]
        timeline.transfer_start = timeline.since(min(starts)) if starts else 0
        timeline.transfer_end = timeline.since(max(ends)) if ends else 0
        timeline.finished = timeline.now()
        usage = events_pb2.Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            audio_samples=self._audio.samples,
            tensor_bytes_sent=sum(call.bytes_sent for call in self._calls),
        )
        queued = timeline.engine_scheduled - timeline.engine_submitted if timeline.engine_scheduled else None
        self._metrics.stage_finished(
            timeline.finished / 1e9, None if queued is None else queued / 1e9, timeline.first_output / 1e9
        )
        await self._writer.send(
            finished=events_pb2.StageFinished(
                finish_reason=reason,
                stop_reason=last.stop_reason,
                usage=usage,
                timings=timeline.to_proto(with_steps=self._plan.include.timings),
                notes=notes,
            )
        )


def _wants_tokens(plan: RequestPlan, component: ServedComponent) -> bool:
    return plan.include.token_ids if component.facts.writes_text else plan.include.codec_tokens
