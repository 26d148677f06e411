"""Traces of stages: which spans a timeline becomes, and what an OTLP collector receives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from omni_stage.errors import ConfigurationError
from omni_stage.service.request.tracing import SpanTimes, StageTracing, Timeline, list_spans, open_tracing
from support.peers.otlp_collector import Collector, collecting

pytest.importorskip("opentelemetry.sdk")

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_timeline_becomes_the_parts_that_happened() -> None:
    whole = Timeline(
        engine_submitted=10, engine_scheduled=20, first_output=50, last_output=90, transfer_start=51, transfer_end=95
    )
    assert list_spans(whole) == [
        SpanTimes("input", 0, 10),
        SpanTimes("queue", 10, 20),
        SpanTimes("prefill", 20, 50),
        SpanTimes("generate", 50, 90),
        SpanTimes("transfer", 51, 95),
    ]
    media = Timeline(decode_start=2, decode_end=8, engine_submitted=10)
    assert list_spans(media) == [SpanTimes("decode", 2, 8), SpanTimes("input", 0, 10)]
    single = Timeline(engine_submitted=10, first_output=50, last_output=50)
    assert list_spans(single) == [SpanTimes("input", 0, 10), SpanTimes("generate", 10, 50)]
    assert list_spans(Timeline()) == []


def test_without_an_endpoint_nothing_is_traced_and_ids_pass() -> None:
    tracing = open_tracing("p", "s", {})
    assert type(tracing) is StageTracing
    assert tracing.begin(CALLER, "r").traceparent(CALLER) == CALLER


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as collector:
        yield collector


def test_stages_of_one_request_are_one_trace(collector: Collector) -> None:
    """As in the servicer, each stage passes its traceparent to the next stage."""
    stages = [open_tracing("omni", name) for name in ("thinker", "talker", "token2wav")]
    given, traces = CALLER, []
    for tracing in stages:
        traces.append(tracing.begin(given, "r1"))
        given = traces[-1].traceparent(given)
    for number, trace in enumerate(traces):
        timeline = Timeline(engine_submitted=10, engine_scheduled=20, first_output=50, last_output=90)
        trace.end(timeline, ValueError("secret") if number == 2 else None)
    for tracing in stages:
        tracing.close()
    by_stage = {service: [span for name, span in collector.spans if name == service] for service, _ in collector.spans}
    assert list(by_stage) == ["omni-thinker", "omni-talker", "omni-token2wav"]
    assert {span.trace_id.hex() for _, span in collector.spans} == {CALLER.split("-")[1]}
    parent = CALLER.split("-")[2]
    for service, spans in by_stage.items():
        root = next(span for span in spans if span.name == f"stage {service.removeprefix('omni-')}")
        assert root.parent_span_id.hex() == parent
        parts = [span for span in spans if span is not root]
        assert sorted(span.name for span in parts) == ["generate", "input", "prefill", "queue"]
        assert {span.parent_span_id for span in parts} == {root.span_id}
        queue = next(span for span in parts if span.name == "queue")
        assert queue.end_time_unix_nano - queue.start_time_unix_nano == 10
        assert {item.key: item.value.string_value for item in root.attributes}["omnipipeline.request_id"] == "r1"
        parent = root.span_id.hex()
    failed = next(span for name, span in collector.spans if span.name == "stage token2wav")
    assert (failed.status.code, failed.status.message) == (2, "ValueError")


class HttpCollector(BaseHTTPRequestHandler):
    """An OTLP/HTTP receiver that keeps the paths and types of what it gets."""

    got: list[tuple[str, str]]

    def do_POST(self) -> None:
        self.got.append((self.path, self.headers["content-type"]))
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


def test_the_environment_chooses_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """With http/protobuf, spans are sent over HTTP. As gRPC, they would be lost at the collector's HTTP port."""
    HttpCollector.got = []
    with HTTPServer(("127.0.0.1", 0), HttpCollector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        tracing = open_tracing("omni", "thinker")
        tracing.begin(CALLER, "r1").end(Timeline(), None)
        tracing.close()
        server.shutdown()
    assert HttpCollector.got == [("/v1/traces", "application/x-protobuf")]


def test_what_is_missing_for_the_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}
    with pytest.raises(ConfigurationError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'") as refused:
        open_tracing("omni", "thinker", wanted)
    assert refused.value.details.field == "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match="opentelemetry-exporter-otlp-proto-http: install it"):
        open_tracing("omni", "thinker", {**wanted, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"})
