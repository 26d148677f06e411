"""Traces: what a stage did for a request, as OpenTelemetry spans.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set; otherwise nothing of OpenTelemetry
is imported. One span begins with the request. Its parts are drawn when the request has ended, from the marks that the
stage keeps anyway (Timeline), so that no token costs anything.

    stage thinker                      parent: the caller's traceparent, else none
      input | queue | prefill | generate | transfer

The stages below get a traceparent that names this span, so that one request is one trace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omni_stage.errors import ConfigurationError
from omni_stage.service.call_metadata import TRACEPARENT_KEY
from omni_stage.service.request.timeline import Timeline

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class SpanTimes:
    """One part of a stage's work, in ns since Accepted."""

    name: str
    start: int
    end: int


def list_spans(timeline: Timeline) -> list[SpanTimes]:
    """Returns the parts of a stage's work that happened, in their order. Pure.

    Of a single output, a whole audio or one token, nothing separates prefill from generation: all of it is generation.
    """
    single = timeline.first_output == timeline.last_output
    began = timeline.engine_scheduled or timeline.engine_submitted
    parts = [
        SpanTimes("input", 0, timeline.engine_submitted or timeline.input_complete),
        SpanTimes("queue", timeline.engine_submitted, timeline.engine_scheduled),
        SpanTimes("prefill", began, 0 if single else timeline.first_output),
        SpanTimes("generate", began if single else timeline.first_output, timeline.last_output),
        SpanTimes("transfer", timeline.transfer_start, timeline.transfer_end),
    ]
    return [part for part in parts if part.end > part.start and (part.start or part.name == "input")]


class RequestTrace:
    """The spans of one request; this one, where traces are off, makes none."""

    def traceparent(self, given: str) -> str:
        """Returns what the stages below get; `given` is the caller's, empty if it sent none."""
        return given

    def end(self, timeline: Timeline, error: BaseException | None) -> None:
        """The request ended."""


class SpanTrace(RequestTrace):
    """One request in one stage."""

    def __init__(self, tracer: Any, name: str, traceparent: str, attributes: Mapping[str, str]) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()
        parent = self._propagator.extract({TRACEPARENT_KEY: traceparent}) if traceparent else None
        self._span = tracer.start_span(name, context=parent, kind=SpanKind.SERVER, attributes=dict(attributes))

    def traceparent(self, given: str) -> str:
        """Returns what the stages below get: this span is the parent of theirs."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(self._span))
        return carrier.get(TRACEPARENT_KEY, given)

    def end(self, timeline: Timeline, error: BaseException | None) -> None:
        """Draw the parts, and end the request's span."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        if self._span.is_recording():
            context, zero = set_span_in_context(self._span), timeline.accepted_unix_ns
            for part in list_spans(timeline):
                child = self._tracer.start_span(part.name, context=context, start_time=zero + part.start)
                child.end(end_time=zero + part.end)
            if error is not None:
                # The type alone: a message may quote the request.
                self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        self._span.end()


class Tracing:
    """The traces of one stage; this one is off."""

    def begin(self, traceparent: str, request_id: str) -> RequestTrace:
        """A request was taken; `traceparent` is the caller's, empty if it sent none."""
        return RequestTrace()

    def close(self) -> None:
        """Send what waits."""


class OtlpTracing(Tracing):
    """Spans to an OTLP collector, in batches, from a thread of OpenTelemetry's."""

    def __init__(self, provider: TracerProvider, pipeline: str, stage: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("omnipipeline.stage")
        self._name = f"stage {stage}"
        self._attributes = {"omnipipeline.pipeline": pipeline, "omnipipeline.stage": stage}

    def begin(self, traceparent: str, request_id: str) -> RequestTrace:
        """See Tracing."""
        attributes = {**self._attributes, "omnipipeline.request_id": request_id}
        return SpanTrace(self._tracer, self._name, traceparent, attributes)

    def close(self) -> None:
        """Send what waits, for OpenTelemetry's own time-out at most."""
        self._provider.shutdown()


def open_tracing(pipeline: str, stage: str, environment: Mapping[str, str] = os.environ) -> Tracing:
    """Returns the traces of a stage: on if the environment names an OTLP endpoint.

    OpenTelemetry reads its own variables besides (OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES and the like). Raises
    ConfigurationError if its packages are missing.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(
            f"{' or '.join(ENDPOINTS)} is set, but OpenTelemetry is not installed; install omnipipeline[otel] or unset",
            field=ENDPOINTS[1],
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": f"{pipeline}-{stage}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtlpTracing(provider, pipeline, stage)
