"""A pipeline of pods answers text, sound and image prompts as the same pipeline of local processes does."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cluster.client_pod import TARGET, ClientPod
from support.cluster.images import ROOT
from support.cluster.workload import SAMPLES
from support.controlplane.api import Manifest
from support.media import encode_png, encode_wav, make_image, make_sound
from support.pipelines import run_pipeline

SERVICE = "omni_proto.stage.v1.StageService"
PROMPTS: dict[str, dict[str, Any]] = {
    "text": {"text": "Say hello to the whales."},
    "sound": {"text": "What do you hear?", "audio": base64.b64encode(encode_wav(make_sound(1))).decode()},
    "image": {"text": "What do you see?", "image": base64.b64encode(encode_png(make_image(2))).decode()},
}
REQUESTS = [{**prompt, "seed": seed} for seed, prompt in enumerate(PROMPTS.values(), start=7)]


@pytest.fixture(scope="session")  # as the node: what is of a module would begin after it
def local_answers(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `omnipipe run` of the sample answers; it has ended, for the pods need the memory."""
    folder = tmp_path_factory.mktemp("local")
    # As many threads as the pods take: sums in another order are other sums.
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    with run_pipeline(SAMPLES / "tiny-omni.yaml", tiny_checkpoint, folder, threads) as running:
        asked = json.dumps({"target": running.endpoint, "requests": REQUESTS})
        script = ROOT / "tests/support/cluster/ask.py"
        result = subprocess.run(
            [sys.executable, script], input=asked, capture_output=True, text=True, check=True, timeout=300
        )
    return dict(zip(PROMPTS, json.loads(result.stdout), strict=True))


@pytest.fixture(scope="module")
def pod_answers(local_answers: dict[str, Any], tiny_omni: Manifest, client: ClientPod) -> dict[str, Any]:
    """What the pods answer to the same prompts, asked from another pod."""
    return dict(zip(PROMPTS, client.ask(TARGET, REQUESTS), strict=True))


@pytest.mark.timeout(3600)  # the first one makes binaries, images and the node
@pytest.mark.parametrize("prompt", PROMPTS)
def test_pods_answer_as_local_processes_do(
    prompt: str, local_answers: dict[str, Any], pod_answers: dict[str, Any]
) -> None:
    here, there = local_answers[prompt], pod_answers[prompt]
    assert there["finished"] == ["talker", "thinker", "token2wav"]
    assert there["texts"] == here["texts"]
    assert there["texts"]["thinker"]
    assert there["token_ids"] == here["token_ids"]
    assert len(there["token_ids"]["talker"]) > 1
    assert there["sample_rate_hz"] == here["sample_rate_hz"]
    sound, expected = (np.frombuffer(base64.b64decode(answer["audio"]), np.float32) for answer in (there, here))
    assert sound.size > 1000
    np.testing.assert_allclose(sound, expected, rtol=0, atol=1e-5)


def test_grpcurl_of_another_pod_gets_text_and_sound(tiny_omni: Manifest, client: ClientPod) -> None:
    url = tiny_omni["status"]["url"].removeprefix("grpc://")
    assert SERVICE in client.grpcurl(url, "list").split()
    # Greedy, the tiny model speaks on until its token limit; sampled, it may end before the first sound.
    greedy = {"talker": {"temperature": 0, "repetitionPenalty": 1, "maxTokens": 24}}
    start = {"text": "Tell me what the weather is like.", "seed": 3, "sampling": greedy}
    messages = json.dumps({"start": start}) + json.dumps({"end": {}})
    events = parse_objects(client.grpcurl("-d", "@", "-max-time", "60", url, f"{SERVICE}/Generate", stdin=messages))
    assert "accepted" in events[0]
    assert "summary" in events[-1]
    assert "".join(event["text"]["text"] for event in events if "text" in event)
    assert [event["audio"] for event in events if "audio" in event][-1]["last"] is True


def parse_objects(text: str) -> list[dict[str, Any]]:
    """grpcurl prints one JSON object after another."""
    decoder, objects, position = json.JSONDecoder(), [], 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        found, position = decoder.raw_decode(text, position)
        objects.append(found)
    return objects
