"""A request through gateway and stages is one trace in OpenTelemetry's own collector, with spans of each stage."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from omni_cli.commands.run import find_models
from omni_gateway.entries.pipelines import ServedPipeline
from omni_proto.pipeline import load_pipeline
from omni_proto.runtime.otlp import ENDPOINTS
from support.media.samples import encode_wav, make_audio
from support.peers.gateways import serve_gateway
from support.peers.otel_collector import CollectedSpan, run_collector
from support.processes.pipelines import SAMPLES, run_pipeline

# `make full` only: building the collector takes 80 s of CPU. tests/processes/gateway/test_gateway_traces.py uses a
# receiver written in Python.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

REQUEST = "POST /v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MODEL = "omni"
QUESTION = [{"type": "text", "text": "Tell me what the weather is like."}]


@dataclass(frozen=True)
class Case:
    """A pipeline, the message content sent to it, and the spans that each of its stages must have."""

    sample: str
    content: list[dict[str, Any]]
    parts: dict[str, set[str]]


def _hear() -> list[dict[str, Any]]:
    audio = base64.b64encode(encode_wav(make_audio())).decode()
    return [{"type": "input_audio", "input_audio": {"data": audio, "format": "wav"}}]


TOKENS = {"input", "queue", "prefill", "generate", "transfer"}
CASES = {
    # Stage servers with paced engines, which start in seconds.
    "paced": Case("sim-omni.yaml", QUESTION, {"thinker": TOKENS, "talker": TOKENS, "decoder": TOKENS - {"transfer"}}),
    "vllm": Case(
        "tiny-omni.yaml",
        _hear(),
        {
            "thinker": TOKENS | {"decode", "llm_request"},
            "talker": TOKENS,
            "token2wav": {"input", "queue", "generate"},
        },
    ),
}


@dataclass(frozen=True)
class Trace:
    """The spans that the collector received for one request, read after all processes have ended."""

    case: Case
    spans: list[CollectedSpan]

    def named(self, name: str) -> CollectedSpan:
        """Returns the only span of this name."""
        (span,) = [span for span in self.spans if span.name == name]
        return span


@pytest.fixture(scope="module", params=CASES)
def trace(request: pytest.FixtureRequest, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    case, folder = CASES[request.param], tmp_path_factory.mktemp("traces")
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": case.content}],
        "modalities": ["text", "audio"],
        "audio": {"format": "wav"},
        "max_completion_tokens": 12,
    }
    file = SAMPLES / case.sample
    checkpoint = tiny_checkpoint if request.param == "vllm" else Path(find_models(load_pipeline(file))["thinker"])
    with run_collector(folder) as collector, pytest.MonkeyPatch.context() as patch:
        # vLLM reads the same variable. Its engines must not send spans of loading.
        patch.setenv(ENDPOINTS[0], collector.endpoint)
        with (
            run_pipeline(file, checkpoint, folder) as running,
            serve_gateway(ServedPipeline(MODEL, f"grpc://{running.endpoint}")) as url,
        ):
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
            answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers=headers, timeout=120)
            assert answer.is_success, answer.text
    # Each process sends its last spans when it ends, and the collector then writes all that it has.
    return Trace(case, collector.spans())


def test_all_spans_are_of_the_clients_trace_and_of_known_services(trace: Trace) -> None:
    assert {span.trace_id for span in trace.spans} == {TRACE}
    pipeline = load_pipeline(SAMPLES / trace.case.sample).metadata.name
    stages = {f"{pipeline}-{stage}" for stage in trace.case.parts}
    assert {span.service for span in trace.spans} == {"omnipipeline-gateway", *stages}


def test_each_stage_is_below_the_one_that_called_it(trace: Trace) -> None:
    parent = PARENT
    for name in (REQUEST, *(f"stage {stage}" for stage in trace.case.parts)):
        span = trace.named(name)
        assert (span.parent_id, span.attributes["omnipipeline.request_id"]) == (parent, "mine")
        parent = span.span_id


def test_each_stage_shows_its_parts(trace: Trace) -> None:
    for name, parts in trace.case.parts.items():
        stage = trace.named(f"stage {name}")
        below = [span for span in trace.spans if span.parent_id == stage.span_id and not span.name.startswith("stage ")]
        assert {span.name for span in below} >= parts
        assert all(span.service == stage.service and stage.start_ns <= span.start_ns < span.end_ns for span in below)
