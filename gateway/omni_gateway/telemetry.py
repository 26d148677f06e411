"""The gateway's metrics, omni_gateway_*, and its traces, which are off without a collector.

A trace has one span for each API request, which is the parent of the entry stage's span.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from omni_gateway.settings import GatewaySettingsError
from omni_proto.runtime import otlp

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
SERVICE: Final = "omnipipeline-gateway"
SERVER_ERROR: Final = 500
MOST_USERS: Final = 2000
"""Pairs of a model and a key that have series of their own; those that come later count as OTHER."""
OTHER: Final = "other"


class GatewayMetrics:
    """The metrics of one gateway, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, unit="seconds", buckets=SECONDS, registry=self.registry)
        self.requests = counter("omni_gateway_requests", "Requests that ended.", ["route", "status"])
        self.seconds = histogram("omni_gateway_request_seconds", "Time from a request to its end.", ["route"])
        self.first_byte = histogram(
            "omni_gateway_first_output_seconds",
            "From a request to the first text or audio of its answer.",
            ["route", "kind"],
        )
        self.inflight = gauge("omni_gateway_inflight_requests", "Requests that are being answered.")
        self._users: set[tuple[str, str]] = set()
        self._model_requests = counter(
            "omni_gateway_model_requests",
            "Requests that ended, by model, name of the API key (empty: without keys) and status.",
            ["model", "key", "status"],
        )
        self._tokens = counter(
            "omni_gateway_tokens",
            "Tokens of answers, by model and key: prompt (of the entry stage), text and codec (of all stages).",
            ["model", "key", "kind"],
        )
        self._audio_seconds = counter(
            "omni_gateway_audio_seconds",
            "Playing time of the audio that was returned, by model and key.",
            ["model", "key"],
            unit="seconds",
        )
        self._certificate_expiry: Gauge | None = None
        self.refused = counter("omni_gateway_refused", "Requests that were refused, by code.", ["code"])
        self.held_refusals = counter(
            "omni_gateway_held_refusals", "Refusals that were delayed, because their client was refused often."
        )
        self.broken = counter(
            "omni_gateway_broken_answers",
            "Streamed answers that a stage's error ended after status 200, by code.",
            ["code"],
        )
        self.cut = counter(
            "omni_gateway_cut_answers",
            "Answers that miss text or speech, because a stage reached its maximum length.",
            ["route", "stage"],
        )
        self.left = counter("omni_gateway_clients_left", "Requests whose client disconnected before the end.")
        self.held = gauge("omni_gateway_held_requests", "Requests that wait for a pipeline that wakes.")
        self.sessions = gauge("omni_gateway_realtime_sessions", "Sessions of /v1/realtime that are open.")
        self.responses = counter("omni_gateway_realtime_responses", "Responses of sessions, by status.", ["status"])
        self.replicas = gauge(
            "omni_gateway_counted_replicas",
            "Ready replicas of this gateway, as --replicas-of counts them; they share the limits of keys.",
        )
        self.api_calls = counter("omni_gateway_api_server_calls", "Calls of the Kubernetes API.", ["verb", "code"])

    def set_certificate_expiry(self, unix_s: float) -> None:
        """Record when the certificate for new connections expires. A gateway without TLS has no such series."""
        if self._certificate_expiry is None:
            self._certificate_expiry = Gauge(
                "omni_gateway_tls_certificate_expiry_timestamp_seconds",
                "When the certificate for new connections expires, in seconds since 1970. Only with TLS.",
                unit="seconds",
                registry=self.registry,
            )
        self._certificate_expiry.set(unix_s)

    def count_model_request(self, model: str, key: str, status: int) -> None:
        """Count a request that named a model and has ended."""
        self._model_requests.labels(*self._user(model, key), str(status)).inc()

    def count_tokens(self, model: str, key: str, tokens: Mapping[str, int]) -> None:
        """Count the tokens of an answer, by kind: prompt, text, codec."""
        for kind, count in tokens.items():
            self._tokens.labels(*self._user(model, key), kind).inc(count)

    def count_audio(self, model: str, key: str, seconds: float) -> None:
        """Count audio that was returned."""
        self._audio_seconds.labels(*self._user(model, key)).inc(seconds)

    def _user(self, model: str, key: str) -> tuple[str, str]:
        """Returns the labels of a model and a key. Keys may come and go with the file, so their number is bounded."""
        user = (model, key)
        if user not in self._users:
            if len(self._users) >= MOST_USERS:
                return OTHER, OTHER
            self._users.add(user)
        return user

    def count_cut(self, route: str, stages: Sequence[str]) -> None:
        """Count an answer for each stage whose maximum length cut it."""
        for stage in stages:
            self.cut.labels(route, stage).inc()

    def count_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call of the Kubernetes API; see omni_kube.api.transport.CallMetrics."""
        self.api_calls.labels(verb, code).inc()


if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class RequestSpan:
    """The span of one request. This base class does nothing and is used if tracing is off."""

    def traceparent(self, given: str | None) -> str | None:
        """Returns the traceparent for the entry stage. given: the client's traceparent."""
        return given

    def mark(self, what: str) -> None:
        """Add an event that happened now, e.g. "first audio"."""

    def end(self, route: str, status: int, attributes: Mapping[str, str | int], *, error: str = "") -> None:
        """End the span when the request ends. route: empty if no route has the request's path. error: code of the error
        that ended the answer after its status was sent; empty for none."""


class OtlpSpan(RequestSpan):
    """A span that is sent to the collector. Its name and http.*, url.* and error.* attributes follow OpenTelemetry's
    semantic conventions for HTTP servers, gen_ai.* those for generative AI."""

    def __init__(self, tracer: Any, request: Mapping[str, str], traceparent: str | None) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._propagator = TraceContextTextMapPropagator()
        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        self._method = request["http.request.method"]
        # Samplers see only the attributes that a span starts with.
        self._span = tracer.start_span(self._method, context=parent, kind=SpanKind.SERVER, attributes=request)

    def traceparent(self, given: str | None) -> str | None:
        """See RequestSpan."""
        from opentelemetry.trace import set_span_in_context

        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(self._span))
        return carrier.get("traceparent", given)

    def mark(self, what: str) -> None:
        """See RequestSpan."""
        self._span.add_event(what)

    def end(self, route: str, status: int, attributes: Mapping[str, str | int], *, error: str = "") -> None:
        """See RequestSpan."""
        from opentelemetry.trace import Status, StatusCode

        if route:
            self._span.update_name(f"{self._method} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attributes({"http.response.status_code": status, **attributes})
        if error or status >= SERVER_ERROR:
            self._span.set_attribute("error.type", error or str(status))
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class GatewayTracing:
    """The traces of one gateway. This base class does nothing and is used if tracing is off."""

    def begin(self, method: str, scheme: str, path: str, traceparent: str | None) -> RequestSpan:
        """Begin the span of a request. traceparent: the header that the client sent."""
        return RequestSpan()

    def close(self) -> None:
        """Send the remaining spans."""


class OtlpGatewayTracing(GatewayTracing):
    """Sends spans to an OTLP collector."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("omnipipeline.gateway")

    def begin(self, method: str, scheme: str, path: str, traceparent: str | None) -> RequestSpan:
        """See GatewayTracing."""
        request = {"http.request.method": method, "url.scheme": scheme, "url.path": path}
        return OtlpSpan(self._tracer, request, traceparent)

    def close(self) -> None:
        """Send the remaining spans, within OpenTelemetry's own timeout."""
        self._provider.shutdown()


def open_tracing(environment: Mapping[str, str] = os.environ) -> GatewayTracing:
    """Returns the traces of a gateway, which are on if the environment names a collector.

    Raises GatewaySettingsError.
    """
    if not otlp.is_wanted(environment):
        return GatewayTracing()
    try:
        return OtlpGatewayTracing(otlp.open_provider(SERVICE, environment))
    except otlp.TraceExportError as error:
        raise GatewaySettingsError(str(error)) from error
