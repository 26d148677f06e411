"""The ids that a caller sends, when the steps of its request happened, and the OpenTelemetry spans made from both.

Every stage forwards request id and traceparent. Unless OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, tracing is off and OpenTelemetry is not imported. A span begins when a
request is admitted. Its child spans are created after the request has ended, from timestamps that the stage records in
any case (Timeline). So they cost nothing per token.

    stage thinker                      parent: the caller's traceparent, else none
      decode | input | queue | prefill | generate | transfer | llm_request (vLLM's own)

Downstream stages get a traceparent that names the stage's span, so that all stages of a request belong to one trace.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from omni_proto.rpc.options import USER_KEY
from omni_proto.runtime import otlp
from omni_proto.runtime.limits import Client
from omni_proto.stage.v1 import events_pb2
from omni_stage.errors import ConfigurationError
from omni_stage.service.guard.admission import peer_address

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

REQUEST_ID_KEY: Final = "x-request-id"
TRACEPARENT_KEY: Final = "traceparent"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}\Z")
_USER = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def _first(metadata: Iterable[tuple[str, str | bytes]] | None, wanted: str) -> str:
    return next((value for key, value in metadata or () if key == wanted and isinstance(value, str)), "")


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the caller's x-request-id, or a new id if the caller sent none that is safe to log."""
    given = _first(metadata, REQUEST_ID_KEY)
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the caller's traceparent, or "" if the caller sent no well-formed one."""
    trace = _first(metadata, TRACEPARENT_KEY)
    return trace if _TRACEPARENT.match(trace) else ""


def user_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the user that the caller named, or "" if the caller named no well-formed one."""
    user = _first(metadata, USER_KEY)
    return user if _USER.match(user) else ""


def client_of(context: Any) -> Client:
    """Returns the client of a call (grpc.aio.ServicerContext) and its user."""
    identities = context.peer_identities()
    address = b",".join(identities).decode(errors="replace") if identities else peer_address(context.peer())
    return Client(address, user_of(context.invocation_metadata()))


def forwarded_metadata(request_id: str, traceparent: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata for the next stage: the request id, and the traceparent if there is one."""
    pairs = [(REQUEST_ID_KEY, request_id)]
    if traceparent:
        pairs.append((TRACEPARENT_KEY, traceparent))
    return tuple(pairs)


@dataclass(slots=True)
class Timeline:
    """Times of one request in ns since Accepted; 0 means that the event did not happen."""

    accepted_unix_ns: int = field(default_factory=time.time_ns)
    accepted_ns: int = field(default_factory=time.monotonic_ns)
    """Time of Accepted on the monotonic clock, from which the times below count."""
    input_complete: int = 0
    decode_start: int = 0
    """When the media worker starts to decode the prompt's media."""
    decode_end: int = 0
    engine_submitted: int = 0
    engine_scheduled: int = 0
    first_output: int = 0
    last_output: int = 0
    transfer_start: int = 0
    transfer_end: int = 0
    first_audio: int = 0
    finished: int = 0
    steps: list[int] = field(default_factory=list)

    def accept(self) -> None:
        """Record that the request is accepted now."""
        self.accepted_unix_ns, self.accepted_ns = time.time_ns(), time.monotonic_ns()

    def now(self) -> int:
        """Returns the ns since Accepted; at least 1, because 0 means that an event did not happen."""
        return self.since(time.monotonic_ns())

    def note_step(self, submitted_ns: int | None, scheduled_ns: int | None, *, keep_time: bool) -> None:
        """Record an output of the engine. Its other arguments are times of the monotonic clock, in ns, if known.

        keep_time: whether to keep the time of every step.
        """
        now = self.now()
        self.first_output = self.first_output or now
        self.last_output = now
        if scheduled_ns is not None and not self.engine_scheduled:
            self.engine_scheduled = self.since(scheduled_ns)
            if submitted_ns is not None:
                # The engine was called before its input arrived. That wait does not count as time in its queue.
                self.engine_submitted = self.since(submitted_ns)
        if keep_time:
            self.steps.append(now)

    def since(self, monotonic_ns: int) -> int:
        """Returns the ns from Accepted to a time of the monotonic clock; at least 1."""
        return max(1, monotonic_ns - self.accepted_ns)

    def to_proto(self, *, with_steps: bool) -> events_pb2.StageTimings:
        """Returns the times as the protocol's message."""
        return events_pb2.StageTimings(
            accepted_unix_ns=self.accepted_unix_ns,
            input_complete_ns=self.input_complete,
            engine_submitted_ns=self.engine_submitted,
            engine_scheduled_ns=self.engine_scheduled,
            first_output_ns=self.first_output,
            last_output_ns=self.last_output,
            transfer_start_ns=self.transfer_start,
            transfer_end_ns=self.transfer_end,
            first_audio_ns=self.first_audio,
            finished_ns=self.finished,
            step_ns=self.steps if with_steps else (),
        )


@dataclass(frozen=True, slots=True)
class SpanTimes:
    """One part of a stage's work, in ns since Accepted."""

    name: str
    start: int
    end: int


def list_spans(timeline: Timeline) -> list[SpanTimes]:
    """Returns the parts of a stage's work that happened, in a fixed order. Pure.

    If the engine gives a single output (one token, or all audio at once), there is no "prefill": "generate" covers it.
    """
    single = timeline.first_output == timeline.last_output
    began = timeline.engine_scheduled or timeline.engine_submitted
    parts = [
        SpanTimes("decode", timeline.decode_start, timeline.decode_end),
        SpanTimes("input", 0, timeline.engine_submitted or timeline.input_complete),
        SpanTimes("queue", timeline.engine_submitted, timeline.engine_scheduled),
        SpanTimes("prefill", began, 0 if single else timeline.first_output),
        SpanTimes("generate", began if single else timeline.first_output, timeline.last_output),
        SpanTimes("transfer", timeline.transfer_start, timeline.transfer_end),
    ]
    return [part for part in parts if part.end > part.start and (part.start or part.name == "input")]


class RequestTrace:
    """The spans of one request. This base class, for disabled tracing, creates none."""

    def traceparent(self, given: str) -> str:
        """Returns the traceparent for downstream stages. `given` is the one that the caller sent, or empty."""
        return given

    def end(self, timeline: Timeline, error: BaseException | None) -> None:
        """End the trace when the request has ended."""

    @contextmanager
    def ended_with(self, timeline: Timeline) -> Iterator[None]:
        """End the request's spans with the context, whether it succeeds or fails."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            self.end(timeline, error)


class SpanTrace(RequestTrace):
    """The spans of one request in one stage, with tracing enabled."""

    def __init__(self, tracer: Any, name: str, traceparent: str, attributes: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()
        parent = self._propagator.extract({TRACEPARENT_KEY: traceparent}) if traceparent else None
        self._span = tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=dict(attributes))

    def traceparent(self, given: str) -> str:
        """Returns the traceparent for downstream stages, which makes this span the parent of their spans."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(self._span))
        return carrier.get(TRACEPARENT_KEY, given)

    def end(self, timeline: Timeline, error: BaseException | None) -> None:
        """Create the child spans, and end the request's span."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        if self._span.is_recording():
            context, zero = set_span_in_context(self._span), timeline.accepted_unix_ns
            for part in list_spans(timeline):
                child = self._tracer.start_span(part.name, context=context, start_time=zero + part.start)
                child.end(end_time=zero + part.end)
            if error is not None:
                # Only the type, because a message may quote the request.
                self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()


class StageTracing:
    """The traces of one stage. This base class, for disabled tracing, records none."""

    def begin(self, traceparent: str, request_id: str) -> RequestTrace:
        """Begin the span of an admitted request; `traceparent` is the one that the caller sent, or empty."""
        return RequestTrace()

    def join_engine(self) -> None:
        """From now on, send what vLLM traces in this process too: a span of each request, not those of loading."""

    def close(self) -> None:
        """Export the pending spans."""


class OtlpTracing(StageTracing):
    """Sends spans to an OTLP collector, in batches, from OpenTelemetry's own thread."""

    def __init__(self, provider: TracerProvider, pipeline: str, stage: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("omnipipeline.stage")
        self._name = f"stage {stage}"
        self._attributes = {"omnipipeline.pipeline": pipeline, "omnipipeline.stage": stage}

    def begin(self, traceparent: str, request_id: str) -> RequestTrace:
        """See StageTracing."""
        attributes = {**self._attributes, "omnipipeline.request_id": request_id}
        return SpanTrace(self._tracer, self._name, traceparent, attributes)

    def join_engine(self) -> None:
        """See StageTracing."""
        from opentelemetry.trace import set_tracer_provider

        set_tracer_provider(self._provider)

    def close(self) -> None:
        """Export the pending spans, within OpenTelemetry's own timeout."""
        self._provider.shutdown()


def open_tracing(pipeline: str, stage: str, environment: Mapping[str, str] = os.environ) -> StageTracing:
    """Returns the traces of a stage, enabled if the environment names an OTLP endpoint.

    OpenTelemetry itself also reads environment variables, such as OTEL_TRACES_SAMPLER and OTEL_RESOURCE_ATTRIBUTES.
    Raises ConfigurationError if OpenTelemetry's packages are missing, or if the environment names an unknown OTLP
    protocol.
    """
    if not otlp.is_wanted(environment):
        return StageTracing()
    try:
        provider = otlp.open_provider(f"{pipeline}-{stage}", environment)
    except otlp.TraceExportError as error:
        raise ConfigurationError(str(error), field=error.variable) from error
    return OtlpTracing(provider, pipeline, stage)
