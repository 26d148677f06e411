"""Unmodified OpenAI clients of other languages and of voice agents work with the gateway and real engines.

Where a client can send a seed, its results are compared with the gRPC client's. For the others the tests compare how
much audio arrived with what the gateway's metrics say that it sent.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from omni_proto.client import GenerationResult, OmniClient
from support.peers.gateways import wait_for_metrics
from support.processes.foreign_programs import run_cases
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

# `make full` only: the clients come from package registries. test_gateway_clients.py and test_gateway_speech.py test
# OpenAI's client for Python.
pytestmark = [pytest.mark.pipeline, pytest.mark.full]

MODEL = "tiny-omni"
QUESTION = "Tell me what the weather is like."
RATE_HZ = 24_000
SILENCE = bytes(2 * RATE_HZ // 100)
"""The 10 ms of silence that livekit-agents appends to each PCM answer (livekit.agents.tts.AudioEmitter)."""


@pytest.fixture(scope="module")
def text(tiny_pipeline: RunningPipeline) -> str:
    """The text answer to the question over gRPC."""
    with OmniClient(tiny_pipeline.endpoint) as direct:
        return direct.run(text=QUESTION, seed=5, modalities=["text"], sampling={"thinker": {"max_tokens": 12}}).text


@pytest.fixture(scope="module")
def spoken(tiny_pipeline: RunningPipeline) -> GenerationResult:
    """The spoken answer to the question over gRPC."""
    with OmniClient(tiny_pipeline.endpoint) as direct:
        return direct.run(text=QUESTION, seed=3, voice="Ethan", sampling={"thinker": {"max_tokens": 8}})


@pytest.fixture
def run(tiny_gateway: str, tmp_path: Path) -> Callable[[str], tuple[dict[str, Any], float]]:
    """run(client) returns the results of the client's cases, and the seconds of audio that the gateway counted."""

    def run(name: str) -> tuple[dict[str, Any], float]:
        before = _audio_seconds(tiny_gateway)
        gave = run_cases(name, tmp_path, f"{tiny_gateway}/v1", MODEL)
        return gave, _audio_seconds(tiny_gateway) - before

    return run


def _audio_seconds(gateway: str) -> float:
    wait_for_metrics(gateway, "omni_gateway_inflight_requests 1.0")  # the scrape itself
    lines = httpx.get(f"{gateway}/metrics", timeout=PATIENCE_S).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("omni_gateway_audio_seconds_total{"))


def _pcm(case: dict[str, Any]) -> bytes:
    return base64.b64decode(case["pcm"])


def _assert_speech(*answers: bytes, seconds: float, within: float = 1e-9) -> None:
    """Checks that no answer is silent, and that together they are as long as the audio that the gateway sent."""
    assert all(any(answer) for answer in answers)
    assert sum(len(answer) for answer in answers) / 2 / RATE_HZ == pytest.approx(seconds, abs=within)


def test_openai_for_node(
    run: Callable[[str], tuple[dict[str, Any], float]], text: str, spoken: GenerationResult, tiny_gateway: str
) -> None:
    gave, _ = run("openai-node")
    assert gave["models"] == [MODEL, "tts-1"]
    assert gave["text"] == gave["streamed_text"] == {"text": text, "tokens": 12}
    assert gave["gathered_text"] == {"text": text, "finish": "length"}
    for case in ("spoken", "streamed_speech"):
        assert (gave[case]["text"], _pcm(gave[case])) == (spoken.text, spoken.audio)
    python = openai.OpenAI(base_url=f"{tiny_gateway}/v1", api_key="none")
    asked = {"model": MODEL, "voice": "alloy", "input": "Good morning!", "response_format": "pcm"}
    said = python.audio.speech.create(**asked, extra_body={"seed": 3}).content  # type: ignore[arg-type]
    assert (gave["speech"]["type"], _pcm(gave["speech"])) == ("audio/pcm", said)
    refusals = {
        "unknown_model": ("NotFoundError", 404, "model", "model_not_found"),
        "unsupported_field": ("BadRequestError", 400, "n", "unsupported_parameter"),
        "unsupported_endpoint": ("NotFoundError", 404, None, "unsupported_endpoint"),
    }
    assert {case: tuple(gave[case].values()) for case in refusals} == refusals


def test_pipecats_openai_services(run: Callable[[str], tuple[dict[str, Any], float]], text: str) -> None:
    gave, seconds = run("pipecat")
    assert gave["text"] == {"text": text, "tokens": 12, "errors": []}
    spoken = [gave["speech"], gave["speech_by_alias"]]
    assert [(case["forms"], case["stopped"], case["errors"]) for case in spoken] == [([[RATE_HZ, 1]], 1, [])] * 2
    _assert_speech(*map(_pcm, spoken), seconds=seconds)
    for case in (gave["unknown_model"], gave["speech_of_nobody"]):
        assert "404 - The model 'nobody' does not exist" in case["errors"][0]


def test_livekits_openai_plugin(run: Callable[[str], tuple[dict[str, Any], float]], text: str) -> None:
    gave, seconds = run("livekit")
    assert gave["text"] == {"text": text, "tokens": 12}
    spoken = [gave[f"speech_as_{form}"] for form in ("events", "bytes", "mp3")]
    assert [(case["rate"], case["channels"]) for case in spoken] == [(RATE_HZ, 1)] * 3
    answers = [_pcm(case) for case in spoken]
    # The plugin appends no silence to MP3.
    assert [answer.endswith(SILENCE) for answer in answers[:2]] == [True] * 2
    # The first two are exact. MP3 has frames of 24 ms and begins with the encoder's look-ahead, hence the tolerance.
    _assert_speech(*(answer.removesuffix(SILENCE) for answer in answers), seconds=seconds, within=0.1)
    assert gave["speech_of_nobody"] == {"status": 404, "code": "model_not_found"}
