"""The unchanged paced sample (sim-omni) on a real node: it needs no GPU, no model and little memory."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
import yaml

from support.cluster.client_pod import ClientPod
from support.cluster.cluster import Cluster
from support.cluster.workload import SAMPLES
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api

SPEECH = "speech"
NAME = "sim-omni"
TARGET = f"dns:///{NAME}-headless.{SPEECH}.svc.cluster.local.:50051"
MOST_BYTES = 100 << 20
READ_MEMORY = "import re; print(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/1/status').read())[1])"


@pytest.fixture(scope="module")
def paced(speech: Api) -> Iterator[list[str]]:
    """Yields the names of the sample's pods, once it is Ready. Deletes it after this module."""
    speech.apply(yaml.safe_load((SAMPLES / f"{NAME}.yaml").read_text()))
    wait_settled(speech, NAME, timeout_s=120)
    yield [pod["metadata"]["name"] for pod in speech.list("Pod", f"omnipipeline.io/pipeline={NAME}")]
    speech.delete("OmniPipeline", NAME)


@pytest.mark.timeout(600)
def test_small_pods_speak_the_same_for_a_seed_without_a_gpu(
    paced: list[str], speech: Api, client: ClientPod, cluster: Cluster
) -> None:
    """Equal seeds give equal answers. Each pod uses at most 100 MiB and requests no GPU."""
    one, two, other = client.ask(TARGET, [{"text": "Say hello.", "seed": seed} for seed in (1, 1, 2)])
    assert one["finished"] == ["decoder", "talker", "thinker"]
    assert one == two
    assert one["texts"] != other["texts"]
    # 75 to 225 words of 0.13 s each. A second has 24,000 samples of 4 bytes each.
    assert 9 < len(base64.b64decode(one["audio"])) / 96_000 < 32
    assert len(paced) == 3
    for pod in paced:
        said = cluster.kubectl("exec", pod, "-c", "stage", "--", "python", "-c", READ_MEMORY, namespace=SPEECH).stdout
        assert int(said) * 1024 <= MOST_BYTES, pod
        (container,) = speech.get("Pod", pod)["spec"]["containers"]
        assert not any("gpu" in name for name in container["resources"]["limits"])
