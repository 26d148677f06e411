"""Sends spans to an OpenTelemetry collector, if the environment names one. Used by stages and by the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment names a collector."""
    return any(environment.get(name) for name in ENDPOINTS)


def open_provider(service: str) -> TracerProvider:
    """Returns a provider whose spans are sent in batches, over gRPC, from a separate thread.

    OpenTelemetry reads its own variables (OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES and the like); service is the
    service's name in traces. Raises ImportError if its packages are missing.
    """
    # Imported here, so that processes without a collector do not load OpenTelemetry.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
