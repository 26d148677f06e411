"""Sends spans to an OpenTelemetry collector, if the environment names one. Used by stages and by the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from omni_proto.errors import OmniProtoError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""The variables that name the protocol. The one for traces takes precedence, as with the endpoints."""
GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"


class TraceExportError(OmniProtoError, ValueError):
    """The environment asks for traces that this process cannot send. `variable` names the environment variable."""

    def __init__(self, message: str, variable: str) -> None:
        super().__init__(message)
        self.variable = variable


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment names a collector."""
    return any(environment.get(name) for name in ENDPOINTS)


def exemplar_of(traceparent: str | None) -> dict[str, str] | None:
    """Returns the exemplar that links a metric's value to a trace; None without a traceparent, or if the trace is not
    sampled. traceparent must be well-formed."""
    parts = traceparent.split("-") if traceparent else []
    sampled = bool(parts) and bool(int(parts[3], 16) & 1)
    return {"trace_id": parts[1], "span_id": parts[2]} if sampled else None


def read_protocol(environment: Mapping[str, str]) -> tuple[str, str]:
    """Returns the protocol, GRPC (the default) or HTTP, and the name of the variable that sets it ("" if none does).

    An empty variable counts as unset, and case does not matter, as in OpenTelemetry's specification. Raises
    TraceExportError for any other protocol, such as http/json, which OpenTelemetry for Python does not have.
    """
    variable = next((name for name in PROTOCOLS if environment.get(name)), "")
    if not variable:
        return GRPC, ""
    protocol = environment[variable].strip().lower()
    if protocol not in (GRPC, HTTP):
        raise TraceExportError(
            f"{variable} is {environment[variable][:64]!r}; use {GRPC} (the default) or {HTTP}", variable
        )
    return protocol, variable


def open_provider(service: str, environment: Mapping[str, str]) -> TracerProvider:
    """Returns a provider whose spans are sent in batches from a separate thread, with the environment's protocol.

    OpenTelemetry reads its own variables (OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES and the like); service is the
    service's name in traces. Raises TraceExportError if its packages are missing, or for an unknown protocol.
    """
    protocol, variable = read_protocol(environment)
    # Imported here, so that processes without a collector do not load OpenTelemetry.
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TraceExportError(
            f"{' or '.join(ENDPOINTS)} is set, but OpenTelemetry is not installed; install omnipipeline[otel] or "
            "unset it",
            ENDPOINT,
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(_open_exporter(protocol, variable)))
    return provider


def _open_exporter(protocol: str, variable: str) -> SpanExporter:
    try:
        if protocol == HTTP:
            from opentelemetry.exporter.otlp.proto.http import trace_exporter as http

            return http.OTLPSpanExporter()
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc

        return grpc.OTLPSpanExporter()
    except ImportError as error:
        package = f"opentelemetry-exporter-otlp-proto-{'http' if protocol == HTTP else 'grpc'}"
        remedy = f", or set {variable}={GRPC}" if protocol == HTTP else ""
        raise TraceExportError(
            f"{variable or ' or '.join(ENDPOINTS)} needs the package {package}: install it{remedy}",
            variable or ENDPOINT,
        ) from error
