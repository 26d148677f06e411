"""A request through the gateway is one trace: the gateway's span is below the client's, and the entry's below that."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from omni_gateway.entries.pipelines import ServedPipeline
from support.peers.answering_entry import FAILING_SEED, serve_entry
from support.peers.gateways import serve_gateway, wait_for_metrics
from support.peers.otlp_collector import Collector, collecting
from support.processes.polling import PATIENCE_S

pytest.importorskip("opentelemetry.sdk")
gen_ai_attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(monkeypatch) as collector:
        yield collector


def test_the_gateways_span_joins_the_client_s_and_is_the_entrys_parent(collector: Collector) -> None:
    asked = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}]}
    with serve_entry() as (port, starts):
        with serve_gateway(ServedPipeline("omni", f"grpc://127.0.0.1:{port}")) as url:
            headers = {"traceparent": CALLER, "x-request-id": "mine"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers, timeout=PATIENCE_S).json()
            assert (
                httpx.post(f"{url}/v1/chat/completions", json={**asked, "model": "x"}, timeout=PATIENCE_S).status_code
                == 404
            )
            httpx.get(f"{url}/health", timeout=PATIENCE_S)
            accept = "application/openmetrics-text; version=1.0.0"
            told = httpx.get(f"{url}/metrics", headers={"accept": accept}, timeout=PATIENCE_S).text
        assert len(starts) == 1
    (given,) = starts.traceparents
    ours, missed = (span for _, span in collector.spans)
    assert {service for service, _ in collector.spans} == {"omnipipeline-gateway"}
    assert (ours.name, ours.trace_id.hex(), ours.parent_span_id.hex()) == ("POST /v1/chat/completions", TRACE, PARENT)
    assert given == f"00-{TRACE}-{ours.span_id.hex()}-01"
    facts = {item.key: item.value.string_value or item.value.int_value for item in ours.attributes}
    assert facts["http.response.status_code"] == 200
    assert (facts["http.request.method"], facts["url.scheme"]) == ("POST", "http")
    assert facts["url.path"] == facts["http.route"] == "/v1/chat/completions"
    assert (facts["omnipipeline.request_id"], facts["omnipipeline.model"]) == ("mine", "omni")
    known = {name for key, name in vars(gen_ai_attributes).items() if key.startswith("GEN_AI_")}
    generated = {name: value for name, value in facts.items() if name.startswith("gen_ai.")}
    assert generated.keys() <= known, "OpenTelemetry's own list"
    assert generated["gen_ai.operation.name"] == gen_ai_attributes.GenAiOperationNameValues.CHAT.value
    assert generated["gen_ai.output.type"] == gen_ai_attributes.GenAiOutputTypeValues.SPEECH.value
    assert generated["gen_ai.request.model"] == "omni"
    used = answer["usage"]
    assert generated["gen_ai.usage.input_tokens"] == used["prompt_tokens"]
    assert generated["gen_ai.usage.output_tokens"] == used["completion_tokens"]
    assert [event.name for event in ours.events] == ["first text", "first audio"]
    assert missed.trace_id.hex() != TRACE
    # In the OpenMetrics format the latency histogram has exemplars, which name a trace.
    examples = [
        sample.exemplar.labels
        for family in text_string_to_metric_families(told)
        for sample in family.samples
        if sample.exemplar is not None and family.name == "omni_gateway_first_output_seconds"
    ]
    assert {"trace_id": TRACE, "span_id": ours.span_id.hex()} in examples


def test_failures_and_paths_without_a_route_follow_the_conventions(collector: Collector) -> None:
    """A span names only routes, and says that a streamed answer failed although its status was 200."""
    asked = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "seed": FAILING_SEED}
    with serve_entry() as (port, _), serve_gateway(ServedPipeline("omni", f"grpc://127.0.0.1:{port}")) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert '"code":"service_unavailable"' in answer.text
        assert httpx.get(f"{url}/v1/unknown/path", timeout=PATIENCE_S).status_code == 404
        wait_for_metrics(url, 'omni_gateway_broken_answers_total{code="service_unavailable"} 1.0')
    failed, unknown = (span for _, span in collector.spans)
    facts = {item.key: item.value.string_value or item.value.int_value for item in failed.attributes}
    assert (facts["http.response.status_code"], facts["error.type"]) == (200, "service_unavailable")
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert unknown.name == "GET"
    assert "http.route" not in {item.key for item in unknown.attributes}
    assert unknown.status.code == unknown.status.STATUS_CODE_UNSET


def test_without_a_collector_the_clients_context_passes_unchanged() -> None:
    asked = {"model": "omni", "messages": [{"role": "user", "content": "Hello"}]}
    with serve_entry() as (port, starts), serve_gateway(ServedPipeline("omni", f"grpc://127.0.0.1:{port}")) as url:
        headers = {"traceparent": CALLER}
        assert httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers, timeout=PATIENCE_S).is_success
        assert starts.traceparents == [CALLER]
