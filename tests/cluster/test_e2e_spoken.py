"""A spoken question to three unlike stages on a real node: Whisper, a text model and a voice, all with trained weights.

The voice comes from a folder of a repository of the hub, the others from a volume. Whisper, in the test's process,
judges the spoken answer. Without the weights of `make demo TALK=1`, the tests are skipped by name. Also the image of
the demo, which asks and speaks in one container.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from omni_cli.commands.demo import ASSETS
from support.cluster.client_pod import ClientPod
from support.cluster.cluster import Cluster
from support.cluster.node.images import DEMO_IMAGE
from support.cluster.workload import SAMPLES
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api, eventually
from support.models.hub import Hub
from support.models.real_weights import (
    PARAGRAPHS,
    count_misheard,
    count_word_errors,
    find_weights,
    read_wav,
    split_words,
    transcribe,
)

pytestmark = pytest.mark.timeout(1200)

NAME = "whisper-llm-voice"
TARGET = f"dns:///{NAME}-headless.speech.svc.cluster.local.:50051"
VOICE = "en/en_US/joe/medium"


@pytest.fixture(scope="module")
def dialogue(speech: Api, hub: Hub, models: Path) -> Iterator[None]:
    """Serves the sample with the weights of this machine, and less CPU than it requests. Deletes it afterwards."""
    folders = {"asr": find_weights("whisper-base"), "llm": find_weights("smollm2-135m-instruct")}
    joe = find_weights("en-us-joe-medium")
    document = yaml.safe_load((SAMPLES / f"{NAME}.yaml").read_text())
    uris = {stage: {"uri": f"pvc://models/spoken/{stage}"} for stage in folders}
    uris["voice"] = {"uri": f"hf://org/open/{VOICE}"}
    for stage in document["spec"]["stages"]:
        stage["model"] = uris[stage["name"]]
        stage["resources"]["requests"] = {"cpu": "100m", "memory": "512Mi"}
    files = {f"{VOICE}/{file.name}": file.read_bytes() for file in joe.glob("*.onnx*")}
    before, hub.files = hub.files, {**hub.files, **files}
    try:
        for stage, folder in folders.items():
            shutil.copytree(folder, models / "spoken" / stage, copy_function=link_or_copy)
        speech.apply(document)
        wait_settled(speech, NAME, timeout_s=600)
        yield
    finally:
        speech.delete("OmniPipeline", NAME)
        hub.files = before
        shutil.rmtree(models / "spoken", ignore_errors=True)


def link_or_copy(source: str, target: str) -> None:
    """Gives a file a second name, which takes no space, or copies it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def test_a_spoken_question_gets_a_spoken_answer(dialogue: None, client: ClientPod) -> None:
    question = base64.b64encode((ASSETS / "speech.wav").read_bytes()).decode()
    (answer,) = client.ask(TARGET, [{"audio": question, "seed": 0}])
    assert answer["finished"] == ["asr", "llm", "voice"]
    assert split_words(answer["transcript"]) == split_words("What is the capital of France?")
    said = split_words(answer["texts"]["llm"])
    assert "paris" in said
    audio = np.frombuffer(base64.b64decode(answer["audio"]), "<f4")
    heard = split_words(transcribe(find_weights("whisper-base"), audio, answer["sample_rate_hz"]))
    # Letters, because Whisper base divides words that sound alike in other ways: "France is Paris", "Francis pairs".
    letters = list("".join(said))
    assert count_word_errors(letters, list("".join(heard))) <= len(letters) / 5, heard


def test_a_typed_question_gets_a_spoken_answer(dialogue: None, client: ClientPod) -> None:
    """Whisper has nothing to hear, and passes it on."""
    (answer,) = client.ask(TARGET, [{"text": "What is the capital of France?", "seed": 0}])
    assert (answer["finished"], answer["transcript"]) == (["asr", "llm", "voice"], "")
    assert "paris" in split_words(answer["texts"]["llm"])
    assert len(base64.b64decode(answer["audio"])) > 4 * answer["sample_rate_hz"]


READ_ALOUD = """
import base64, json, sys, urllib.request
from concurrent.futures import ThreadPoolExecutor
asked = json.load(sys.stdin)
def read(text):
    body = {"model": asked["model"], "input": text, "voice": "joe", "response_format": "wav", "seed": 7}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(asked["url"], json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return base64.b64encode(answer.read()).decode()
with ThreadPoolExecutor(8) as pool:
    json.dump(list(pool.map(read, asked["texts"])), sys.stdout)
"""


def test_fifty_sentences_read_aloud_at_once_are_understood(
    dialogue: None, client: ClientPod, cluster: Cluster, operator: str
) -> None:
    """Through the gateway, which finds the pipeline in the cluster, and the pods.

    With a seed the voice cuts texts and sounds as on any machine. Without one, a busy stage cuts them shorter.
    """
    service = cluster.admin.in_namespace(operator).get("Service", "omnipipeline-gateway")
    asked = {
        "url": f"http://{service['spec']['clusterIP']}:8000/v1/audio/speech",
        "model": f"speech/{NAME}",
        "texts": PARAGRAPHS,
    }
    spoken = json.loads(client.run("python", "-c", READ_ALOUD, stdin=json.dumps(asked), timeout_s=300))
    assert count_misheard([read_wav(base64.b64decode(one)) for one in spoken]) <= 0.03


@pytest.mark.full
def test_the_image_of_the_demo_answers_aloud(cluster: Cluster, speech: Api, models: Path) -> None:
    """Any user may run it. The weights come from a volume at /cache, and the answers go to one at /out."""
    shared = models / "demo"
    for name in ("smollm2-135m-instruct", "en-us-joe-medium"):
        folder = find_weights(name)
        shutil.copytree(folder, shared / "cache/omnipipeline/weights" / folder.name, copy_function=link_or_copy)
    (shared / "out").mkdir()
    for folder in (shared / "cache", shared / "out"):
        folder.chmod(0o777)
    cluster.images.build(DEMO_IMAGE)
    mounts = [{"name": "models", "mountPath": f"/{one}", "subPath": f"demo/{one}"} for one in ("cache", "out")]
    container = {
        "name": "demo",
        "image": DEMO_IMAGE,
        "imagePullPolicy": "Never",
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 4321, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo", "namespace": "speech"}, "spec": spec}
    try:
        speech.apply(pod)
        ended = ("Succeeded", "Failed")
        eventually(lambda: speech.get("Pod", "demo")["status"]["phase"] in ended, why="the demo ends", timeout_s=600)
        log = cluster.kubectl("logs", "demo", namespace="speech").stdout
        assert speech.get("Pod", "demo")["status"]["phase"] == "Succeeded", log
        answer = shared / "out" / "capital"
        said = split_words((answer / "text.txt").read_text())
        assert "tokyo" in said
        heard = transcribe(find_weights("whisper-base"), *read_wav((answer / "speech.wav").read_bytes()))
        assert "tokyo" in split_words(heard)
    finally:
        speech.delete("Pod", "demo")
        shutil.rmtree(shared, ignore_errors=True)
