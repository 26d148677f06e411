"""A pipeline of pods answers text, audio, image and video prompts as the same pipeline of local processes does."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cluster.client_pod import TARGET, ClientPod
from support.cluster.node.images import ROOT
from support.cluster.workload import SAMPLES, load_sample
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api, Manifest
from support.media.samples import encode_png, encode_wav, make_audio, make_image
from support.media.videos import encode_video
from support.processes.pipelines import run_pipeline
from support.processes.stage_processes import STAGES

SERVICE = "omni_proto.stage.v1.StageService"
PROMPTS: dict[str, dict[str, Any]] = {
    "text": {"text": "Say hello to the whales."},
    "sound": {"text": "What do you hear?", "audio": base64.b64encode(encode_wav(make_audio(1))).decode()},
    "image": {"text": "What do you see?", "image": base64.b64encode(encode_png(make_image(2))).decode()},
    "video": {"text": "What happens?", "video": base64.b64encode(encode_video(width=448, height=320)).decode()},
}
FAMILIES = {"qwen2_5_omni": "tiny-omni", "qwen3_omni": "tiny-qwen3-omni"}
"""Model family -> its sample pipeline."""
REQUESTS = [{**prompt, "seed": seed} for seed, prompt in enumerate(PROMPTS.values(), start=7)]


Answers = dict[str, dict[str, Any]]
"""Name of a prompt -> its answer."""


@pytest.fixture(scope="session")  # so that it begins before the node: pytest sets up modules' fixtures later
def asking_locally(
    make_tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Future[Answers]]]:
    """Yields a function that asks a family's sample under `omnipipe run` in a thread.

    It has begun with Qwen2.5-Omni, whose engines use the CPU while the node starts and images are built.
    """
    with ThreadPoolExecutor(1) as pool:

        @cache
        def asking(family: str) -> Future[Answers]:
            checkpoint = make_tiny_checkpoint(0, "small", family)
            return pool.submit(ask_locally, family, checkpoint, tmp_path_factory.mktemp(family))

        asking("qwen2_5_omni")
        yield asking


def ask_locally(family: str, checkpoint: Path, folder: Path) -> Answers:
    """Returns the family's answers. `folder` is for logs."""
    # As many threads as the pods use: with another number, sums are made in another order and rounded differently.
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    with run_pipeline(SAMPLES / f"{FAMILIES[family]}.yaml", checkpoint, folder, threads) as running:
        asked = json.dumps({"target": running.endpoint, "requests": REQUESTS})
        script = ROOT / "tests/support/cluster/ask.py"
        result = subprocess.run(
            [sys.executable, script], input=asked, capture_output=True, text=True, check=True, timeout=300
        )
    return dict(zip(PROMPTS, json.loads(result.stdout), strict=True))


@pytest.fixture(scope="module")
def tiny_qwen3_omni(speech: Api, models: Path, make_tiny_checkpoint: Callable[..., Path]) -> Iterator[str]:
    """Yields the address at which pods reach the Qwen3-Omni sample, once it is Ready. Deletes it after this module."""
    sample = FAMILIES["qwen3_omni"]
    shutil.copytree(make_tiny_checkpoint(0, "small", "qwen3_omni"), models / sample)
    subprocess.run(["chmod", "-R", "a+rX", models / sample], check=True)
    speech.apply(load_sample(sample, model=f"pvc://models/{sample}"))
    ready = wait_settled(speech, sample, timeout_s=300)
    yield str(ready["status"]["url"]).removeprefix("grpc://")
    speech.delete("OmniPipeline", sample)


@pytest.fixture(scope="module", params=["qwen2_5_omni", pytest.param("qwen3_omni", marks=pytest.mark.full)])
def answers(
    request: pytest.FixtureRequest, asking_locally: Callable[[str], Future[Answers]], client: ClientPod
) -> tuple[str, Answers, Answers]:
    """Returns the family, and the answers of its local processes and of its pods, which the client pod asks."""
    # The pods start after `omnipipe run` has freed its memory.
    here = asking_locally(request.param).result()
    request.getfixturevalue("tiny_omni")
    target = TARGET if request.param == "qwen2_5_omni" else request.getfixturevalue("tiny_qwen3_omni")
    return request.param, here, dict(zip(PROMPTS, client.ask(target, REQUESTS), strict=True))


@pytest.mark.timeout(3600)  # the first test builds binaries and images and starts the node
@pytest.mark.parametrize("prompt", PROMPTS)
def test_pods_answer_as_local_processes_do(
    prompt: str, asking_locally: object, answers: tuple[str, Answers, Answers]
) -> None:
    """`asking_locally` is named here so that it begins first: pytest sets up fixtures of the session in this order."""
    family, local, remote = answers
    here, there = local[prompt], remote[prompt]
    assert there["finished"] == sorted(STAGES[family])
    assert there["texts"] == here["texts"]
    assert there["texts"]["thinker"]
    assert there["token_ids"] == here["token_ids"]
    assert len(there["token_ids"]["talker"]) > 1
    assert there["sample_rate_hz"] == here["sample_rate_hz"]
    audio, expected = (np.frombuffer(base64.b64decode(answer["audio"]), np.float32) for answer in (there, here))
    assert audio.size > 1000
    np.testing.assert_allclose(audio, expected, rtol=0, atol=1e-5)


def test_grpcurl_of_another_pod_gets_text_and_audio(tiny_omni: Manifest, client: ClientPod) -> None:
    url = tiny_omni["status"]["url"].removeprefix("grpc://")
    assert SERVICE in client.grpcurl(url, "list").split()
    # With greedy sampling the tiny model speaks until its token limit; with random sampling it may end without audio.
    greedy = {"talker": {"temperature": 0, "repetitionPenalty": 1, "maxTokens": 24}}
    start = {"text": "Tell me what the weather is like.", "seed": 3, "sampling": greedy}
    messages = json.dumps({"start": start}) + json.dumps({"end": {}})
    events = parse_objects(client.grpcurl("-d", "@", "-max-time", "60", url, f"{SERVICE}/Generate", stdin=messages))
    assert "accepted" in events[0]
    assert "summary" in events[-1]
    assert "".join(event["text"]["text"] for event in events if "text" in event)
    assert [event["audio"] for event in events if "audio" in event][-1]["last"] is True


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Returns the JSON objects that grpcurl printed one after another."""
    decoder, objects, position = json.JSONDecoder(), [], 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        found, position = decoder.raw_decode(text, position)
        objects.append(found)
    return objects
