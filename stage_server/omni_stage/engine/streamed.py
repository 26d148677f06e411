"""Runs requests that start before their input is complete. Uses part_plan, the component's feed and the engine core."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from vllm import PoolingParams, SamplingParams

from omni_proto.pipeline.components import EngineKind
from omni_stage.engine.requests.lowering import Lowering, PartPlan
from omni_stage.engine.work import Work, WorkLedger
from omni_stage.errors import InvalidRequestError
from omni_stage.exchange import EngineStep, FinishReason
from omni_stage.models.component import (
    CutsForPlayback,
    EdgeStream,
    InputFeed,
    InputPart,
    StageRequest,
    StageStep,
    TakesStreams,
    gather_rows,
    read_part,
)
from omni_stage.payloads.additional_information import OMNI_DUE_KEY
from omni_stage.vllm_adapter.core.interface import CorePart, EngineCore, Params
from omni_stage.vllm_adapter.scheduling.playback import Playback
from omni_stage.vllm_adapter.scheduling.sessions import Sessions


def finish_reason(step: EngineStep, kind: EngineKind) -> FinishReason | None:
    """Returns how the request of this step ended, or the part of a request; None if it continues.

    Diffusion and decoder stages share a runner, which reports DIFFUSION_DONE. A decoder runs no diffusion, so its
    requests end with STOP.
    """
    reason = step.finish_reason
    return FinishReason.STOP if kind is EngineKind.DECODER and reason is FinishReason.DIFFUSION_DONE else reason


MARGIN_S: Final = 0.3
"""How long before the listener runs dry the next audio should be there."""
CLAUSE_S: Final = 3.0
"""Audio of a clause, for the time that it takes to speak one."""


@dataclass(frozen=True, slots=True)
class StreamedRuns:
    """Runs the streamed requests of one started engine."""

    core: EngineCore
    lowering: Lowering
    work: WorkLedger
    sessions: Sessions
    """Limits how many sessions (autoregressive requests with streamed input) the engine has; further ones wait here."""
    windows: dict[str, str] = field(default_factory=dict)
    """Request id -> the engine's id of the window that runs for it."""

    @property
    def waiting_requests(self) -> int:
        """Number of sessions that wait until they may enter the engine."""
        return len(self.sessions.queue.waiting)

    async def run_session(self, request: StageRequest, stream: EdgeStream) -> AsyncGenerator[StageStep, None]:
        """Yields the steps of an autoregressive request; see part_plan. Closing the generator aborts the request."""
        feed, part = await self._open_feed(request, stream)
        if part.input.finished is not None:
            yield StageStep(finish_reason=part.input.finished)
            return
        component = self.lowering.component
        emitter, kind = component.emitter(request, part.input), component.facts.kind
        params = self.lowering.sampling_params(request, part.input)
        plan = PartPlan(params.max_tokens or 1)
        submitted = time.monotonic_ns()
        longest = len(part.input.prompt["prompt_token_ids"]) + (params.max_tokens or 1)
        final: StageStep | None = None
        async with self.sessions.enter(min(longest, self.lowering.traits.max_model_len), request.priority):
            with self.work.open(request.request_id) as work:
                parts = self._parts(request, plan, params, part, stream, feed, work)
                # Drop this reference, so that the rows of a long prompt are freed before the request ends.
                del part
                run = self.core.stream_parts(request.request_id, parts, priority=request.priority)
                async with aclosing(run) as outputs:
                    async for output in outputs:
                        self.work.note_step()
                        if output.finish_reason is not None:
                            work.rest()
                        ended = plan.observe(output.token_ids, finish_reason(output, kind))
                        if ended is not output.finish_reason:
                            # Only the part has ended. Change a copy, because the engine core still reads the output.
                            output = replace(output, finish_reason=ended)
                        step = emitter.emit(output)
                        step.submitted_ns = submitted
                        if ended is not None:
                            final = step
                            break
                        work.lend()
                        yield step
                        work.take_back()
        if final is not None:
            # Yield only after the session has left the engine, so that a slow reader of the steps keeps no KV cache.
            yield final

    async def run_windows(self, request: StageRequest, stream: EdgeStream) -> AsyncGenerator[StageStep, None]:
        """Yields the steps of a one-shot request. Each part (window) becomes an engine request, one after another.

        Closing the generator aborts the request.
        """
        feed, part = await self._open_feed(request, stream)
        if part.input.finished is not None:
            yield StageStep(finish_reason=part.input.finished)
            return
        ended = False
        try:
            async with aclosing(self._windows(request, stream, feed, part)) as steps:
                async for step, is_last in steps:
                    ended = ended or is_last
                    yield step
        finally:
            if not ended:
                # The model may keep state for the stream. Without a last part, it does not free that state by itself.
                await self.core.end_stream(request.request_id)

    async def _windows(
        self, request: StageRequest, stream: EdgeStream, feed: InputFeed, part: InputPart
    ) -> AsyncGenerator[tuple[StageStep, bool], None]:
        """Yields each step with a flag, which is true for the last output of the stream's last part."""
        component = self.lowering.component
        emitter, kind = component.emitter(request, part.input), component.facts.kind
        playback, rate, submitted = Playback(), component.facts.sample_rate_hz, time.monotonic_ns()
        for window in itertools.count():
            prompt, params = self.lowering.lower(request, part.input, self.lowering.params(request, part.input))
            _set_due(params, playback.due(time.monotonic()))
            core_id = f"{request.request_id}.{window}"
            self.windows[request.request_id] = core_id
            made = began = time.monotonic()
            spoken_s = 0.0
            try:
                with self.work.open(core_id) as work:
                    run = self.core.stream(core_id, prompt, params, priority=request.priority, on_submit=work.begin)
                    async with aclosing(run) as outputs:
                        async for output in outputs:
                            self.work.note_step()
                            made = time.monotonic()
                            reason = finish_reason(output, kind) if part.last else None
                            step = emitter.emit(replace(output, finish_reason=reason))
                            step.submitted_ns = submitted
                            if step.audio is not None and rate:
                                playback.add(made, seconds := step.audio.shape[-1] / rate)
                                spoken_s += seconds
                            work.lend()
                            yield step, reason is not None
                            work.take_back()
            finally:
                self.windows.pop(request.request_id, None)
            if part.last:
                return
            if isinstance(feed, CutsForPlayback) and request.sampling.seed is None and spoken_s:
                part = await read_part_in_time(stream, feed, playback, (made - began) / spoken_s)
            else:
                now = time.monotonic()
                await gather_rows(stream, feed, playback.gathers_until(now, made - began) - now)
                part = await read_part(stream, feed)
            if part.input.finished is not None:
                # The stream's end arrived after its last rows: there is nothing more to compute.
                yield StageStep(finish_reason=part.input.finished), False
                return

    async def _open_feed(self, request: StageRequest, stream: EdgeStream) -> tuple[InputFeed, InputPart]:
        """Wait for the rows of the first part. Returns the request's feed and that part."""
        component = self.lowering.component
        if not isinstance(component, TakesStreams):
            raise InvalidRequestError(f"component {component.facts.id} cannot start before its input is complete")
        feed = component.open_feed(request)
        # In a thread, since the first part may hold a long prompt.
        return feed, await read_part(stream, feed, in_thread=True)

    async def _parts(
        self,
        request: StageRequest,
        plan: PartPlan,
        params: SamplingParams,
        part: InputPart,
        stream: EdgeStream,
        feed: InputFeed,
        work: Work,
    ) -> AsyncGenerator[CorePart, None]:
        """Yields the parts of a session, each when the engine asks for it, until the generator is closed."""
        while True:
            planned = plan.next(part)
            work.begin()
            yield self.lowering.lower_part(request, planned, params)
            part = await read_part(stream, feed)


async def read_part_in_time(
    stream: EdgeStream,
    feed: CutsForPlayback,
    playback: Playback,
    pace: float,
    clock: Callable[[], float] = time.monotonic,
) -> InputPart:
    """Returns the next part, cut so that it is made before the listener runs dry, if possible.

    `pace`: seconds that the last window took for each second of its audio. A request with a seed is cut by its text
    alone, so that it can be repeated. Raises OmniStageError.
    """
    while True:
        left_s = playback.due(clock()) - clock() - MARGIN_S
        wait_s = left_s - CLAUSE_S * pace
        part = feed.next_part_within(max(0.0, left_s) / pace, cut=wait_s <= 0)
        if part is not None:
            return part
        try:
            async with asyncio.timeout(wait_s if wait_s > 0 else None):
                rows = await stream.read()
        except TimeoutError:
            continue
        feed.add(rows)


def _set_due(params: Params, due: float) -> None:
    if isinstance(params, PoolingParams):
        params.extra_kwargs = {**(params.extra_kwargs or {}), OMNI_DUE_KEY: due}
