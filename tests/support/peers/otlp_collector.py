"""An OTLP/gRPC receiver inside the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from omni_proto.runtime.otlp import ENDPOINTS


class Collector:
    """An OTLP/gRPC receiver that keeps the received spans as (service name, span)."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

        self.spans: list[tuple[str, Any]] = []
        spans = self.spans

        class Service(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request: Any, context: Any) -> Any:
                for resource in request.resource_spans:
                    names = {item.key: item.value.string_value for item in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        spans.extend((names["service.name"], span) for span in scope.spans)
                return trace_service_pb2.ExportTraceServiceResponse()

        self.server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()


@contextmanager
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Yields a receiver. Sets the environment variable that makes this process send its spans to the receiver."""
    collector = Collector()
    monkeypatch.setenv(ENDPOINTS[1], f"http://127.0.0.1:{collector.port}")
    try:
        yield collector
    finally:
        collector.server.stop(0)
