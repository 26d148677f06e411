"""One admitted request: turns the engine's steps into events for the caller and rows for the downstream stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from omni_proto.errors import OmniProtoError
from omni_proto.rpc.status import read_status
from omni_proto.stage.v1 import events_pb2
from omni_stage.errors import ConfigurationError, EngineDeadStageError, ModelExecutionError
from omni_stage.models.component import (
    FinishReason,
    KnowsFirstAudio,
    KnowsPace,
    ServedComponent,
    StageRequest,
    StageStep,
)
from omni_stage.process.stage_log import request_id_var
from omni_stage.service.edges.channels import Deadline
from omni_stage.service.edges.downstream_call import EdgeCall, EdgeContext
from omni_stage.service.edges.outbox import EARLY_STEPS, ROW_PLAYS_S
from omni_stage.service.errors import first_error, to_status
from omni_stage.service.request.input import InputOrder, RequestInput
from omni_stage.service.request.outputs import open_writers
from omni_stage.service.request.planning.plan import RequestPlan, bound_rows, downstream_start, max_new_tokens
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.runtime import StageRuntime
from omni_stage.service.request.tracing import Timeline, forwarded_metadata

_log = logging.getLogger(__name__)
ACCEPT_WRITE_S: Final = 0.5
"""Maximum number of seconds for which the end of a call may be delayed until Accepted is written."""
_FINISH_REASONS = {
    FinishReason.STOP: events_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: events_pb2.FINISH_REASON_LENGTH,
    FinishReason.DIFFUSION_DONE: events_pb2.FINISH_REASON_DIFFUSION_DONE,
    FinishReason.EMPTY_INPUT: events_pb2.FINISH_REASON_EMPTY_INPUT,
}


class RequestRun:
    """The work of one request in one stage, from its admission to StageFinished."""

    def __init__(
        self,
        runtime: StageRuntime,
        plan: RequestPlan,
        calls: Sequence[EdgeCall],
        responses: ResponseWriter,
        timeline: Timeline,
    ) -> None:
        self._stage = runtime.config.stage
        self._request_id = request_id_var.get()
        self._plan = plan
        self._allow_partial = plan.start.allow_partial
        self._engine = runtime.engine
        self._metrics = runtime.metrics
        self._load = runtime.load
        self._calls = list(calls)
        self._want_tensors = bool(calls)
        self._responses = responses
        self._timeline = timeline
        self._writers = open_writers(plan, runtime.engine.component.facts, responses, timeline)
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._rows_bound = plan.output_rows
        self._accepted = asyncio.Event()
        self._all_open = asyncio.Event()
        """Set once no call of a Stream edge is still being opened."""
        self._opening = sum(call.opens_early for call in calls)
        if not self._opening:
            self._all_open.set()

    async def _accept(self) -> None:
        """Send Accepted once the stage of each Stream edge has accepted, or has failed under allow_partial.

        The caller must not retry after that.
        """
        await self._all_open.wait()
        accepted = events_pb2.Accepted(
            request_id=self._request_id,
            accepted_unix_ns=self._timeline.accepted_unix_ns,
            max_tokens=max_new_tokens(self._plan, self._engine.component.facts, self._engine.max_model_len),
        )
        # gRPC cannot end a call while a write is in progress, so a failure waits until this write is done.
        writing = asyncio.ensure_future(self._responses.accept(accepted))
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
            if not self._allow_partial:
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

    async def execute(self, source: RequestInput) -> None:
        """Run the engine on the request that `source` builds, and the downstream calls, until all have ended.

        Accepted is sent after the stages of Stream edges have accepted the request. The engine starts earlier, with two
        exceptions: it waits for Accepted if it needs the complete input first (InputOrder.BEFORE_ENGINE), and if a
        stage of a Stream edge refused a request recently, so that the engine does no useless work. The engine's rows
        are sent to the stage of a Stream edge as soon as that stage accepts. All other output is sent after Accepted.

        Ends everything at the first failure, and raises it. With allow_partial, a failure becomes a StageFailed event
        instead, and the other stages continue if they can.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._accept())
                tasks = {group.create_task(self._run_call(call)): call for call in self._calls}
                reading = group.create_task(self._read(source))
                try:
                    if source.order is InputOrder.BEFORE_ENGINE:
                        await reading
                    if not all(call.is_trusted for call in self._calls if call.opens_early):
                        await self._accepted.wait()
                    request = await source.build(want_tensors=self._want_tensors)
                    last = await self._run_engine(request)
                    if source.order is InputOrder.UNTIL_ENGINE_ENDS:
                        reading.cancel()
                    else:
                        await reading
                    await self._accepted.wait()
                    await self._finish(last, request.notes)
                except OmniProtoError as error:
                    # A dead engine ends all calls of the stage, whether the watchdog or this request notices it first.
                    if not self._allow_partial or isinstance(error, EngineDeadStageError):
                        raise
                    reading.cancel()
                    await self._accepted.wait()
                    async with self._responses.quiet:
                        for task, call in tasks.items():
                            task.cancel()
                            if call.opened and call in self._calls:
                                self._responses.note_cancelled(call.edge.stage)
                    await self._report(error, self._stage)
        except BaseExceptionGroup as group_error:
            raise first_error(group_error) from None

    async def _read(self, source: RequestInput) -> None:
        await self._accepted.wait()
        await source.receive()

    async def _run_call(self, call: EdgeCall) -> None:
        if call.opens_early and not await self._open(call):
            return
        try:
            await call.run(self._accepted)
        except OmniProtoError as error:
            if not self._allow_partial:
                raise
            await self._report(error, call.edge.stage)

    async def _report(self, error: OmniProtoError, stage: str) -> None:
        status = to_status(error, stage=stage, request_id=self._request_id)
        reason = read_status(status).reason
        _log.warning("a stage failed; the request continues without it", extra={"reason": reason})
        await self._responses.send_failed(status, stage)

    async def _run_engine(self, request: StageRequest) -> StageStep:
        """Process the engine's steps. Returns the last step."""
        self._timeline.engine_submitted = self._timeline.now()
        last: StageStep | None = None
        # However this function ends, closing the iterator makes the engine abort the request.
        async with aclosing(self._engine.generate(request)) as steps:
            with self._load.waiting() as begun:
                async for step in steps:
                    begun()
                    await self._on_step(step)
                    last = step
        if last is None or last.finish_reason is None:
            raise ModelExecutionError(f"the engine of stage {self._stage!r} ended the request without a finish reason")
        return last

    async def _on_step(self, step: StageStep) -> None:
        """Record the step, queue its rows for the downstream stages, and write its output to the caller."""
        self._timeline.note_step(step.submitted_ns, step.scheduled_ns, keep_time=self._plan.start.include.timings)
        if step.prompt_token_ids is not None:
            self._cached_tokens = step.cached_tokens
            self._on_prompt(len(step.prompt_token_ids))
        self._completion_tokens += len(step.token_ids)
        if step.tensors:
            for call in self._calls:
                call.feed(step.tensors, self._rows_bound, step.complete_tensors)
        if not self._accepted.is_set():
            await self._accepted.wait()
        for writer in self._writers:
            await writer.write(step)

    def _on_prompt(self, tokens: int) -> None:
        self._prompt_tokens = tokens
        # With the prompt's exact length, announce no more rows than the request needs, because downstream stages
        # reserve bytes for all announced rows.
        engine = self._engine
        exact = bound_rows(engine.component, tokens, self._plan.sampling.max_tokens, engine.max_model_len)
        self._rows_bound = min(self._rows_bound, exact)

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
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            tensor_bytes_sent=sum(call.bytes_sent for call in self._calls),
            codec_tokens=0 if self._engine.component.facts.writes_text else self._completion_tokens,
        )
        for writer in self._writers:
            writer.add_usage(usage)
        queued = timeline.engine_scheduled - timeline.engine_submitted if timeline.engine_scheduled else None
        self._metrics.stage_finished(
            timeline.finished / 1e9, None if queued is None else queued / 1e9, timeline.first_output / 1e9
        )
        await self._responses.send(
            finished=events_pb2.StageFinished(
                finish_reason=reason,
                stop_reason=last.stop_reason,
                usage=usage,
                timings=timeline.to_proto(with_steps=self._plan.start.include.timings),
                notes=notes,
                language=last.language,
            )
        )


def build_calls(
    runtime: StageRuntime, plan: RequestPlan, responses: ResponseWriter, deadline: Deadline, traceparent: str
) -> list[EdgeCall]:
    """Returns the calls to the request's downstream stages, not opened."""
    component, config = runtime.engine.component, runtime.config
    if not plan.calls:
        return []
    if component.output_schema is None:
        raise ConfigurationError(f"component {config.component} publishes no tensors", field="downstream")
    common = EdgeContext(
        pipeline=config.pipeline,
        source_stage=config.stage,
        component=config.component,
        schema=component.output_schema,
        early_steps=_count_early_steps(component),
        row_plays_s=(component.row_plays_s if isinstance(component, KnowsPace) else None) or ROW_PLAYS_S,
        request_id=request_id_var.get(),
        metadata=forwarded_metadata(request_id_var.get(), traceparent),
        deadline=deadline,
        channels=runtime.channels,
        metrics=runtime.metrics,
        relay=responses.relay,
    )
    answering = config.answering_stage if config.passes_on(component.facts.transcribes) else None
    return [EdgeCall(edge, downstream_start(plan.start, edge, answering), common) for edge in plan.calls]


def _count_early_steps(component: ServedComponent) -> int:
    """Returns how many of a request's first steps send their rows immediately."""
    return max(EARLY_STEPS, component.first_audio_steps) if isinstance(component, KnowsFirstAudio) else EARLY_STEPS
