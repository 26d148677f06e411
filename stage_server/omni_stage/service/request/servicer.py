"""StageService: one request in numbered steps. Deciding is in `plan`, the work in `run`, the calls below in
`downstream`; errors are raised here and mapped in `errors` by the interceptor."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.stage_config import StageConfig
from omni_proto.tensors import PROMPT_EMBEDS
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError, DeadlineExceededError, EngineDeadStageError, NotReadyError
from omni_stage.models.component import AudioPart, EdgeInput, ImagePart, StageRequest, UserPrompt
from omni_stage.models.edge_stream import EdgeStream
from omni_stage.process.stage_log import request_id_var
from omni_stage.service.answer_meter import AnswerMeter
from omni_stage.service.call_metadata import forwarded_metadata, traceparent_of
from omni_stage.service.deadlines import Deadline
from omni_stage.service.edges.channels import DownstreamChannels
from omni_stage.service.edges.downstream_call import EdgeCall, EdgeContext
from omni_stage.service.in_flight import InFlight
from omni_stage.service.media.planning import receive_media
from omni_stage.service.media.worker_pool import MediaPool
from omni_stage.service.metrics import StageMetrics
from omni_stage.service.request.admission import Admission
from omni_stage.service.request.places import START_GRACE_S, Places, peer_address
from omni_stage.service.request.plan import RequestPlan, downstream_start, media_rules, plan_request, requested_below
from omni_stage.service.request.prompt import PromptPlan, build_prompt, is_light
from omni_stage.service.request.prompt_embeds import build_embeds
from omni_stage.service.request.reading import RequestReader
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.run import RequestRun
from omni_stage.service.request.stage_info import describe_stage
from omni_stage.service.request.timeline import Timeline
from omni_stage.service.request.tracing import RequestTrace, Tracing
from omni_stage.service.wire import WireMessage

START_TIMEOUT_S = 30.0
"""Time for a call's first message, which may hold some MiB of media."""
PLANNERS: Final = 2
"""Threads that look at large requests before they are admitted."""


@dataclass(slots=True)
class StageRuntime:
    """What every call of a stage server shares."""

    config: StageConfig
    engine: StageEngine
    admission: Admission
    in_flight: InFlight
    channels: DownstreamChannels
    metrics: StageMetrics
    starting: Places
    """Of calls whose Start has not come: nothing is reserved for them yet."""
    tracing: Tracing = field(default_factory=Tracing)
    media: MediaPool = field(default_factory=MediaPool)
    planners: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(PLANNERS, "plan"))
    engine_ready: bool = False
    """Set once the engine loaded and answered its warm-up request."""


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
        """Run one request: within its deadline, counted, and ended with the stage."""
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
        # 1. Start, and nothing that is large yet.
        self._check_engine()
        reader = RequestReader()
        start = await _read_start(messages, reader, runtime.starting, peer_address(context.peer()))
        # 2. Decide what it asks for; the edge's schema is part of that.
        plan = await self._plan(start)
        reader.expect(plan.prompt.announced if plan.prompt else {}, plan.edge)
        # 3. Admit: from here on its bytes are reserved.
        with runtime.admission.admit(
            plan.reserved_bytes, media_bytes=plan.media_bytes, streamed=plan.streamed, priority=plan.priority
        ) as admitted:
            writer = ResponseWriter(config.stage, context, meter)
            request_id = request_id_var.get()
            timeline = Timeline()
            given = traceparent_of(context.invocation_metadata())
            trace = runtime.tracing.begin(given, request_id)
            metadata = forwarded_metadata(request_id, trace.traceparent(given))
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
                admitted=admitted,
            )
            with closing(run), _traced(trace, timeline):
                # 4. Accepted, by the stages of Stream edges first: the caller may not retry any more.
                await run.open_early()
                timeline.accept()
                await writer.accept(
                    events_pb2.Accepted(request_id=request_id, accepted_unix_ns=timeline.accepted_unix_ns)
                )
                # 5. The rest of the input, up to End, before the engine or beside it; 6. the stages below.
                if plan.streamed:
                    stream = EdgeStream()
                    await run.execute(
                        lambda: self._stage_request(plan, stream, bool(calls)),
                        lambda: self._receive(messages, reader, stream, timeline),
                    )
                else:
                    await self._receive(messages, reader, None, timeline)
                    await run.execute(lambda: self._stage_request(plan, reader, bool(calls)))
            # 7. The entry reports how all of it ended.
            if config.input is None:
                stages = writer.summarize(config.stages)
                summary = events_pb2.Summary(request_id=request_id, stages=stages, total_ns=timeline.now())
                await writer.send(summary=summary)

    async def _plan(self, start: stage_service_pb2.Start) -> RequestPlan:
        """Beside the loop what takes longer than a blink: other calls, and health checks, continue meanwhile."""
        engine = self._runtime.engine
        plan = partial(plan_request, start, self._config, engine.component, engine.max_model_len, engine.prompt_embeds)
        if is_light(start):
            return plan()
        return await asyncio.get_running_loop().run_in_executor(self._runtime.planners, plan)

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
            source_stage=self._config.stage,
            schema=schema,
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
        self, messages: AsyncIterator[WireMessage], reader: RequestReader, stream: EdgeStream | None, timeline: Timeline
    ) -> None:
        """Read up to End; rows go to stream as they come. Raises ProtocolViolationError, TensorError."""
        while not reader.done:
            reader.feed(await _next(messages, reader))
            if stream is not None and reader.edge is not None and not reader.done:
                stream.put(self._runtime.engine.open_tensors(reader.edge.take()), reader.edge.complete_tensors)
        timeline.input_complete = timeline.now()
        if reader.edge is not None and self._config.input is not None:
            self._runtime.metrics.input_received(
                self._config.input.source, reader.edge.received_bytes, len(reader.tensors)
            )
        if stream is not None:
            stream.end()

    async def _stage_request(
        self, plan: RequestPlan, received: RequestReader | EdgeStream, want_tensors: bool
    ) -> StageRequest:
        """The engine's request. Raises InvalidMediaError, PrepareTimeoutError, TensorError."""
        source: UserPrompt | EdgeInput | EdgeStream
        if isinstance(received, EdgeStream):
            source = received
        elif plan.prompt is not None and plan.prompt.embeds:
            # Popped: from here on the rows are held by the payload alone.
            source = UserPrompt(prompt_embeds=build_embeds(received.tensors.pop(PROMPT_EMBEDS)))
        elif plan.prompt is not None:
            source = build_prompt(plan.prompt, await self._decode(plan.prompt, received))
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
            cache_salt=plan.cache_salt,
        )

    async def _decode(self, prompt: PromptPlan, reader: RequestReader) -> list[ImagePart | AudioPart]:
        """The prompt's media. Raises InvalidMediaError and its kin, PrepareTimeoutError."""
        runtime, config, engine = self._runtime, self._config, self._runtime.engine
        rules = media_rules(config, engine.component, engine.max_model_len)
        if rules is None or not prompt.media:
            return []
        data = {media_id: buffer.data for media_id, buffer in reader.media.items()}
        reader.media = {}
        slots = await asyncio.get_running_loop().run_in_executor(
            runtime.planners, receive_media, prompt.media, data, rules
        )
        del data
        return await runtime.media.decode(slots, rules, config.timeouts.prepare)


@contextmanager
def _traced(trace: RequestTrace, timeline: Timeline) -> Iterator[None]:
    """The request's spans end with it, however it ends."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        trace.end(timeline, error)


async def _read_start(
    messages: AsyncIterator[WireMessage], reader: RequestReader, places: Places, peer: str
) -> stage_service_pb2.Start:
    """The first message. If it does not come soon the call needs one of the places, and may lose it to another."""
    place = None
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as scope:
            with places.hold(peer, partial(scope.reschedule, 0.0), after_s=START_GRACE_S) as place:
                message = await _next(messages, reader)
    except TimeoutError as error:
        if place is not None and place.lost:
            raise places.refusal() from error
        raise DeadlineExceededError(
            f"Start did not come within {START_TIMEOUT_S:g} s", field="start", limit=f"{START_TIMEOUT_S:g} s"
        ) from error
    return reader.start(message)


async def _next(messages: AsyncIterator[WireMessage], reader: RequestReader) -> WireMessage:
    try:
        return await anext(messages)
    except StopAsyncIteration:
        reader.end_of_stream()
        raise
