"""StageService: one request in numbered steps.

`planning` decides what to do, `run` does the work, and `edges.downstream_call` calls the downstream stages. The
interceptor turns errors into statuses, with `service.errors`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omni_proto.process.otlp import exemplar_of
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.stage_config import StageConfig
from omni_proto.tensors import PROMPT_EMBEDS
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError, DeadlineExceededError, EngineDeadStageError, NotReadyError
from omni_stage.models.component import (
    EdgeInput,
    KnowsFirstAudio,
    MediaPart,
    ServedComponent,
    StageRequest,
    UserPrompt,
)
from omni_stage.models.edge_stream import EdgeStream
from omni_stage.process.stage_log import request_id_var
from omni_stage.service.edges.channels import Deadline, DownstreamChannels
from omni_stage.service.edges.downstream_call import EdgeCall, EdgeContext
from omni_stage.service.edges.outbox import EARLY_STEPS
from omni_stage.service.guard.admission import Admission
from omni_stage.service.guard.planners import Planners
from omni_stage.service.guard.quota import CallQuota, peer_address
from omni_stage.service.media.decode_job import damage_note
from omni_stage.service.media.planning import receive_media
from omni_stage.service.media.worker_pool import MediaPool
from omni_stage.service.metering import AnswerMeter, StageMetrics, exemplar_var
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.request.planning.plan import (
    RequestPlan,
    downstream_start,
    media_rules,
    plan_request,
    requested_below,
)
from omni_stage.service.request.planning.prompt import PromptPlan, build_prompt, is_light
from omni_stage.service.request.planning.prompt_embeds import build_embeds
from omni_stage.service.request.reading import RequestReader, WireMessage, read_input, read_start
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.run import Reads, RequestRun
from omni_stage.service.request.stage_info import describe_stage
from omni_stage.service.request.tracing import (
    RequestTrace,
    Timeline,
    Tracing,
    forwarded_metadata,
    traceparent_of,
    user_of,
)

_Source = RequestReader | EdgeStream


@dataclass(slots=True)
class StageRuntime:
    """What all calls of a stage server share."""

    config: StageConfig
    engine: StageEngine
    admission: Admission
    in_flight: InFlight
    channels: DownstreamChannels
    metrics: StageMetrics
    starting: CallQuota
    """Places of calls that have not sent Start: no bytes are reserved for them yet."""
    tracing: Tracing = field(default_factory=Tracing)
    media: MediaPool = field(default_factory=MediaPool)
    planners: Planners = field(init=False)
    engine_ready: bool = False
    """Whether the engine has loaded and completed its warm-up request."""

    def __post_init__(self) -> None:
        self.planners = Planners(self.starting.in_all)


class StageServicer:
    """The methods of StageService."""

    def __init__(self, runtime: StageRuntime) -> None:
        self._runtime = runtime
        self._config = runtime.config

    async def get_stage(
        self, request: stage_service_pb2.GetStageRequest, context: Any
    ) -> stage_service_pb2.GetStageResponse:
        """Describe the stage. Raises NotReadyError while the engine loads."""
        self._check_engine()
        return describe_stage(self._config, self._runtime.engine, self._runtime.admission)

    async def generate(self, messages: AsyncIterator[WireMessage], context: Any) -> None:
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
        self, messages: AsyncIterator[WireMessage], context: Any, deadline: Deadline, meter: AnswerMeter | None
    ) -> None:
        runtime, config = self._runtime, self._config
        # 1. Read Start, but none of the data that follows it.
        self._check_engine()
        reader = RequestReader()
        start = await read_start(messages, reader, runtime.starting, peer_address(context.peer()))
        # 2. Plan the request; this checks the edge's schema too.
        plan = await self._plan(start)
        reader.expect(plan.prompt.announced if plan.prompt else {}, plan.edge)
        # 3. Admit the request: its bytes are reserved from here on.
        with runtime.admission.admit(plan.reserved_bytes, media_bytes=plan.media_bytes, priority=plan.priority):
            writer = ResponseWriter(config.stage, context, meter)
            request_id = request_id_var.get()
            timeline = Timeline()
            given = traceparent_of(context.invocation_metadata())
            trace = runtime.tracing.begin(given, request_id)
            traceparent = trace.traceparent(given)
            exemplar_var.set(exemplar_of(traceparent))
            metadata = forwarded_metadata(request_id, traceparent)
            calls = self._calls(start, plan, writer, deadline, metadata)
            run = RequestRun(
                stage=config.stage,
                request_id=request_id,
                plan=plan,
                engine=runtime.engine,
                calls=calls,
                writer=writer,
                timeline=timeline,
                metrics=runtime.metrics,
            )
            with closing(run), _traced(trace, timeline):
                timeline.accept()
                accepted = events_pb2.Accepted(
                    request_id=request_id,
                    accepted_unix_ns=timeline.accepted_unix_ns,
                    max_tokens=_most_tokens(plan, runtime.engine),
                )
                # 4. Accept, once the stages of Stream edges have accepted. The caller must not retry after that.
                # 5. Read the input up to End, before the engine starts or while it runs.
                # 6. Run the engine and the downstream calls.
                source = EdgeStream() if plan.streamed else reader
                read = partial(self._receive, messages, reader, source, timeline)
                user = user_of(context.invocation_metadata()) or peer_address(context.peer())
                build = partial(self._stage_request, plan, source, bool(calls), timeline, user)
                reads = _reads(plan, reader)
                timeline.input_complete = timeline.now() if reads is Reads.BESIDE else 0
                await run.execute(build, partial(writer.accept, accepted), read, reads)
            # 7. The entry stage reports how each stage ended.
            if config.input is None:
                stages = writer.summarize(config.stages)
                summary = events_pb2.Summary(request_id=request_id, stages=stages, total_ns=timeline.now())
                await writer.send(summary=summary)

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

    def _calls(
        self,
        start: stage_service_pb2.Start,
        plan: RequestPlan,
        writer: ResponseWriter,
        deadline: Deadline,
        metadata: tuple[tuple[str, str], ...],
    ) -> list[EdgeCall]:
        schema = self._runtime.engine.component.output_schema
        if not plan.calls:
            return []
        if schema is None:
            raise ConfigurationError(f"component {self._config.component} publishes no tensors", field="downstream")
        common = EdgeContext(
            pipeline=self._config.pipeline,
            source_stage=self._config.stage,
            schema=schema,
            early_steps=_count_early_steps(self._runtime.engine.component),
            request_id=request_id_var.get(),
            metadata=metadata,
            deadline=deadline,
            channels=self._runtime.channels,
            metrics=self._runtime.metrics,
            relay=writer.relay,
        )
        return [
            EdgeCall(edge, downstream_start(start, plan, edge, requested_below(start, edge)), common)
            for edge in plan.calls
        ]

    async def _receive(
        self, messages: AsyncIterator[WireMessage], reader: RequestReader, source: _Source, timeline: Timeline
    ) -> None:
        """Read up to End, and pass rows to a stream as they arrive.

        Raises ProtocolViolationError, TensorError, DeadlineExceededError.
        """
        stream = source if isinstance(source, EdgeStream) else None
        upstream = self._config.input.source if self._config.input is not None else ""
        while not reader.done:
            reader.feed(await read_input(messages, reader, source=upstream))
            if stream is not None and reader.edge is not None and not reader.done:
                stream.put(self._runtime.engine.open_tensors(reader.edge.take()), reader.edge.complete_tensors)
        timeline.input_complete = timeline.input_complete or timeline.now()
        if reader.edge is not None and self._config.input is not None:
            self._runtime.metrics.input_received(
                self._config.input.source, reader.edge.received_bytes, len(reader.tensors)
            )
        if stream is not None:
            stream.end()

    async def _stage_request(
        self, plan: RequestPlan, received: _Source, want_tensors: bool, timeline: Timeline, caller: str
    ) -> StageRequest:
        """Returns the engine's request. Raises InvalidRequestError, TensorError, and what `_decode` raises."""
        source: UserPrompt | EdgeInput | EdgeStream
        notes: list[str] = []
        if isinstance(received, EdgeStream):
            source = received
        elif plan.prompt is not None and plan.prompt.embeds:
            # Remove the rows from the reader, so that only the payload keeps them from here on.
            source = UserPrompt(prompt_embeds=build_embeds(received.tensors.pop(PROMPT_EMBEDS)))
        elif plan.prompt is not None:
            media = await self._decode(plan.prompt, received, timeline)
            notes = [
                f"{slot.field}: {note}"
                for slot, part in zip(plan.prompt.media, media, strict=False)
                if (note := damage_note(part))
            ]
            source = build_prompt(plan.prompt, media)
        elif plan.edge is not None:
            source = EdgeInput(self._runtime.engine.open_tensors(received.tensors))
        else:
            raise ConfigurationError(f"stage {self._config.stage!r} has neither a prompt nor an edge", field="input")
        return StageRequest(
            request_id=f"{self._config.stage}-{uuid.uuid4().hex}",
            source=source,
            sampling=plan.sampling,
            voice=plan.voice,
            want_tensors=want_tensors,
            priority=plan.priority,
            caller=caller,
            cache_salt=plan.cache_salt,
            notes=notes,
        )

    async def _decode(self, prompt: PromptPlan, reader: RequestReader, timeline: Timeline) -> list[MediaPart]:
        """Returns the prompt's decoded media.

        Raises InvalidRequestError (or a subclass), RequestTooLargeError, PromptTooLongError, PrepareTimeoutError.
        """
        runtime, config, engine = self._runtime, self._config, self._runtime.engine
        rules = media_rules(config, engine.component, engine.max_model_len)
        if rules is None or not prompt.media:
            return []
        rules = replace(rules, hear_videos=prompt.chat is not None and prompt.chat.use_audio_in_video)
        data = {media_id: buffer.data for media_id, buffer in reader.media.items()}
        reader.media = {}
        slots = await runtime.planners.check(receive_media, prompt.media, data, rules)
        del data
        timeline.decode_start = timeline.now()
        parts = await runtime.media.decode(slots, rules, config.timeouts.prepare)
        timeline.decode_end = timeline.now()
        return parts


def _count_early_steps(component: ServedComponent) -> int:
    """Returns how many of a request's first steps send their rows immediately."""
    return max(EARLY_STEPS, component.first_audio_steps) if isinstance(component, KnowsFirstAudio) else EARLY_STEPS


def _most_tokens(plan: RequestPlan, engine: StageEngine) -> int:
    """Returns the most tokens that the stage will generate for a request; 0 if its engine generates none."""
    if engine.component.facts.kind.is_one_shot:
        return 0
    wanted = plan.sampling.max_tokens
    return engine.max_model_len if wanted is None else min(wanted, engine.max_model_len)


def _reads(plan: RequestPlan, reader: RequestReader) -> Reads:
    if plan.streamed:
        return Reads.WHILE_NEEDED
    return Reads.BEFORE if reader.expects_data else Reads.BESIDE


@contextmanager
def _traced(trace: RequestTrace, timeline: Timeline) -> Iterator[None]:
    """End the request's spans with the context, whether it succeeds or fails."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        trace.end(timeline, error)
