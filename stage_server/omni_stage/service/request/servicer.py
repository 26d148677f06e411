"""StageService: one request in numbered steps.

`planning` decides what to do, `input` reads, `run` does the work, and `edges.downstream_call` calls the downstream
stages. The interceptor turns errors into statuses, with `service.errors`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from typing import Final

import grpc
from grpc.aio import ServicerContext

from omni_proto.runtime.otlp import exemplar_of
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.stage_config import Modality, StageConfig
from omni_stage.errors import DeadlineExceededError, EngineDeadStageError, NotReadyError
from omni_stage.process.stage_log import request_id_var
from omni_stage.service.edges.channels import Deadline, DownstreamChannels
from omni_stage.service.metering import AnswerMeter, exemplar_var
from omni_stage.service.request.input import RequestInput
from omni_stage.service.request.planning.plan import RequestPlan, plan_request
from omni_stage.service.request.planning.prompt import is_light
from omni_stage.service.request.reading import RequestReader, WireMessage, read_start
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.run import RequestRun, build_calls
from omni_stage.service.request.runtime import StageRuntime, describe_stage
from omni_stage.service.request.tracing import Timeline, client_of, traceparent_of

KEPT_S: Final = 30.0
"""How long an answer is kept, in seconds. A stage below may be replaced by one with other voices."""
LONGEST_S: Final = 2.0
"""Maximum wait for the answer of a stage below, in seconds."""
SHARE: Final = 0.8
"""Maximum share of the caller's remaining time."""


class VoicesBelow:
    """Asks the stage below that speaks, or whose own stages below do, with GetStage."""

    def __init__(self, config: StageConfig, channels: DownstreamChannels) -> None:
        self._channels = channels
        self._speaking = next((edge.stage for edge in config.downstream if Modality.AUDIO in edge.outputs), None)
        self._voices: tuple[str, ...] = ()
        self._found_at = -math.inf

    async def find(self, remaining_s: float | None) -> tuple[str, ...]:
        """Returns the names of the voices, the default first. Empty if no stage below speaks, or none can be asked.

        `remaining_s`: number of seconds after which the caller needs its own answer; None: there is no such limit.
        """
        if self._speaking is None or time.monotonic() - self._found_at < KEPT_S:
            return self._voices
        within_s = LONGEST_S if remaining_s is None else min(LONGEST_S, SHARE * remaining_s)
        try:
            answer = await self._channels.describe(self._speaking, within_s=within_s)
        except grpc.aio.AioRpcError:
            # Not an error of the caller's: an older answer applies, or the stage that speaks checks the voice.
            return self._voices
        self._voices, self._found_at = tuple(answer.voices), time.monotonic()
        return self._voices


class StageServicer:
    """The methods of StageService."""

    def __init__(self, runtime: StageRuntime) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._voices_below = VoicesBelow(runtime.config, runtime.channels)

    async def get_stage(
        self, request: stage_service_pb2.GetStageRequest, context: ServicerContext
    ) -> stage_service_pb2.GetStageResponse:
        """Describe the stage. Raises NotReadyError while the engine loads."""
        self._check_engine()
        described = describe_stage(self._config, self._runtime.engine, self._runtime.admission)
        if not described.voices:
            described.voices.extend(await self._voices_below.find(context.time_remaining()))
        return described

    async def generate(self, messages: AsyncIterator[WireMessage], context: ServicerContext) -> None:
        """Run one request within its deadline. `in_flight` counts the call, so that a drain waits for it."""
        deadline = Deadline.of_call(context.time_remaining(), self._config.timeouts.request, time.monotonic())
        entry = self._runtime.metrics.entry
        meter = AnswerMeter() if entry is not None else None
        async with self._runtime.in_flight.track():
            try:
                async with asyncio.timeout(deadline.remaining(time.monotonic())) as scope:
                    await self._serve(messages, context, deadline, meter)
            except TimeoutError as error:
                if not scope.expired():
                    raise
                raise DeadlineExceededError(
                    f"the request did not end within its deadline in stage {self._config.stage!r}",
                    limit="the call's deadline, or timeouts.request",
                ) from error
            finally:
                if entry is not None and meter is not None:
                    entry.answered(meter)

    async def _serve(
        self,
        messages: AsyncIterator[WireMessage],
        context: ServicerContext,
        deadline: Deadline,
        meter: AnswerMeter | None,
    ) -> None:
        runtime, config, metadata = self._runtime, self._config, context.invocation_metadata()
        client = client_of(context)
        # 1. Read Start, but none of the data that follows it.
        self._check_engine()
        reader = RequestReader()
        start = await read_start(messages, reader, runtime.starting, client)
        # 2. Plan the request; this checks the edge's schema too.
        plan = await self._plan(start)
        reader.expect(plan.prompt.announced if plan.prompt else {}, plan.edge)
        # 3. Admit the request: its bytes are reserved from here on.
        runtime.load.begins()
        caller = client if config.input is None else None
        with runtime.admission.admit(
            plan.reserved_bytes, media_bytes=plan.media_bytes, priority=start.priority, client=caller
        ) as late_s:
            responses = ResponseWriter(config.stage, context, meter, runtime.load)
            timeline = Timeline()
            given = traceparent_of(metadata)
            trace = runtime.tracing.begin(given, request_id_var.get())
            traceparent = trace.traceparent(given)
            exemplar_var.set(exemplar_of(traceparent))
            calls = build_calls(runtime, plan, responses, deadline, traceparent)
            run = RequestRun(runtime, plan, calls, responses, timeline)
            with closing(run), trace.ended_with(timeline):
                timeline.accept()
                # 4. Accept, once the stages of Stream edges have accepted.
                # 5. Read the input up to End, before the engine starts or while it runs.
                # 6. Run the engine and the downstream calls.
                # Without tracing, the engine gets no traceparent.
                own = trace.traceparent("")
                await run.execute(RequestInput(runtime, plan, messages, reader, timeline, client, late_s, own))
            # 7. The entry stage reports how each stage ended.
            if config.input is None:
                stages = responses.summarize(config.stages)
                summary = events_pb2.Summary(request_id=request_id_var.get(), stages=stages, total_ns=timeline.now())
                await responses.send(summary=summary)

    async def _plan(self, start: stage_service_pb2.Start) -> RequestPlan:
        """Plan the request; a large one in a thread, so that other calls and health checks continue meanwhile."""
        engine = self._runtime.engine
        plan = partial(plan_request, start, self._config, engine.component, engine.max_model_len, engine.prompt_embeds)
        if is_light(start):
            return plan()
        return await self._runtime.planners.plan(plan)

    def _check_engine(self) -> None:
        if self._runtime.engine.is_dead:
            raise EngineDeadStageError(f"the engine of stage {self._config.stage!r} died; the stage server restarts")
        if not self._runtime.engine_ready:
            raise NotReadyError(f"the engine of stage {self._config.stage!r} is still loading", retry_after_s=1.0)
