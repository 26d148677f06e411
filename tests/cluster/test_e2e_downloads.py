"""hf:// checkpoints from a hub: with and without a token, an interrupted transfer, a volume as download cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.client_pod import ClientPod
from support.cluster.workload import delete_pipeline, load_sample
from support.controlplane.pipelines import wait_condition, wait_settled
from support.controlplane.server.api import Api, Manifest
from support.models.hub import COMMIT, TOKEN, Hub

pytestmark = pytest.mark.timeout(900)
NAME, GATED = "from-hub", "from-gated"
SECRET = "hub-token"


@pytest.fixture
def pipeline(speech: Api) -> Iterator[Manifest]:
    """Yields a pipeline of one stage with the checkpoint org/open. The test applies it; it is deleted afterwards."""
    manifest = load_sample("tiny-omni", model="hf://org/open", rename=NAME, entry_alone=True)
    yield manifest
    speech.delete("OmniPipeline", manifest["metadata"]["name"])


def set_token(speech: Api, token: str) -> None:
    metadata = {"name": SECRET}
    speech.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": token}})


def test_a_broken_transfer_resumes_where_it_stopped_and_a_cache_volume_saves_the_next(
    hub: Hub, speech: Api, pipeline: Manifest, client: ClientPod, models: Path
) -> None:
    """A broken download resumes. A pipeline that is created again takes the weights from the cache volume."""
    pipeline["spec"]["model"]["cache"] = {"persistentVolumeClaim": "models"}
    largest = max(hub.files, key=lambda name: len(hub.files[name]))
    assert len(hub.files[largest]) > 15 << 20
    hub.stop_at = 15 << 20
    hub.sent.clear()
    speech.apply(pipeline)
    wait_settled(speech, NAME, timeout_s=300)
    assert hub.stopped.is_set()
    assert [start for name, start in hub.sent if name == largest] == [0, 10 << 20]
    (answer,) = client.ask(f"{NAME}.speech.svc.cluster.local.:50051", [{"text": "Hello.", "seed": 1}])
    assert answer["texts"]["thinker"]
    assert list(models.rglob(".omni-fetched.json"))
    delete_pipeline(speech, NAME)
    hub.sent.clear()
    speech.apply(pipeline)
    wait_settled(speech, NAME, timeout_s=300)
    assert not [name for name in hub.names_sent() if name.endswith(".safetensors")]


def test_a_wrong_token_is_reported_in_the_status_and_a_right_one_clears_it(
    hub: Hub, speech: Api, pipeline: Manifest
) -> None:
    """The status has the reason TokenRejected until new pods use the right token."""
    # The pods of the test before may still end.
    pipeline["metadata"]["name"] = GATED
    pipeline["spec"]["model"] = {
        "uri": "hf://org/gated",
        "revision": COMMIT,
        "tokenSecretRef": {"name": SECRET, "key": "token"},
    }
    set_token(speech, "hf_wrong")
    speech.apply(pipeline)
    told = wait_condition(speech, "Ready", GATED, timeout_s=120, status="False", reason="TokenRejected")
    assert "token" in told["message"]
    assert hub.refused
    set_token(speech, TOKEN)
    for pod in speech.list("Pod", f"omnipipeline.io/pipeline={GATED}"):
        speech.delete("Pod", pod["metadata"]["name"])
    wait_settled(speech, GATED, timeout_s=300)
