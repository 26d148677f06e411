"""A request through gateway and stages is one trace in OpenTelemetry's own collector, with what each stage did."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omni_gateway.pipelines import ServedPipeline
from omni_proto.otlp import ENDPOINTS
from support.gateways import serve_gateway
from support.media import encode_wav, make_sound
from support.otel_collector import CollectedSpan, OtelCollector, run_collector
from support.pipelines import SAMPLES, run_pipeline

# The collector takes 80 s of CPU to build; tests/processes/test_gateway_traces.py has a receiver in Python.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ("thinker", "talker", "token2wav")
PARTS = {
    "stage thinker": {"decode", "input", "queue", "prefill", "generate", "transfer"},
    "stage talker": {"input", "queue", "prefill", "generate", "transfer"},
    "stage token2wav": {"input", "queue", "prefill", "generate"},
}


@pytest.fixture(scope="module")
def trace(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CollectedSpan]]:
    """What the collector has of one request with sound in and out, after everything has ended."""
    folder = tmp_path_factory.mktemp("traces")
    sound = base64.b64encode(encode_wav(make_sound())).decode()
    content = [{"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}]
    asked = {
        "model": "tiny-omni",
        "messages": [{"role": "user", "content": content}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "Ethan", "format": "wav"},
        "max_completion_tokens": 12,
    }
    with run_collector(folder) as collector, pytest.MonkeyPatch.context() as patch:
        # The name that vLLM reads, too: its engines must not send spans of their own by it.
        patch.setenv(ENDPOINTS[0], collector.endpoint)
        with run_pipeline(SAMPLES / "tiny-omni.yaml", tiny_checkpoint, folder) as running:
            served = ServedPipeline("tiny-omni", f"grpc://{running.endpoint}")
            with serve_gateway(served) as url:
                headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
                answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers, timeout=120)
                assert answer.is_success, answer.text
        _wait_until_quiet(collector)
        yield collector.spans()


def _wait_until_quiet(collector: OtelCollector) -> None:
    """Until the last span of each stage, which it sends when it ends, is written."""
    deadline = time.monotonic() + 30
    wanted = {"POST /v1/chat/completions", *PARTS}
    while not wanted <= {span.name for span in collector.spans()}:
        assert time.monotonic() < deadline, [span.name for span in collector.spans()]
        time.sleep(0.1)


def test_all_spans_are_of_the_clients_trace_and_of_known_services(trace: list[CollectedSpan]) -> None:
    assert {span.trace_id for span in trace} == {TRACE}
    assert {span.service for span in trace} == {"omnipipeline-gateway", *(f"tiny-omni-{stage}" for stage in STAGES)}


def test_each_stage_is_below_the_one_that_called_it(trace: list[CollectedSpan]) -> None:
    parent = PARENT
    for name in ("POST /v1/chat/completions", *PARTS):
        (span,) = [span for span in trace if span.name == name]
        assert (span.parent_id, span.attributes["omnipipeline.request_id"]) == (parent, "mine")
        parent = span.span_id


def test_each_stage_shows_its_parts(trace: list[CollectedSpan]) -> None:
    for name, parts in PARTS.items():
        (stage,) = [span for span in trace if span.name == name]
        below = [span for span in trace if span.parent_id == stage.span_id and not span.name.startswith("stage ")]
        assert {span.name for span in below} == parts
        assert all(stage.start_ns <= span.start_ns < span.end_ns for span in below)
