"""Changes under load: rolling updates, a new revision, more replicas and fewer. No call fails."""

from __future__ import annotations

import time

import pytest

from support.cluster.client_pod import TARGET, ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.images import STAGE_IMAGE
from support.controlplane.api import Api, Manifest, eventually
from support.controlplane.pipelines import serving_revision, stage_of, wait_settled

pytestmark = pytest.mark.timeout(1800)
NAME = "tiny-omni"
STAGES = ("thinker", "talker", "token2wav")
TRAFFIC_WITHIN_S = 90


def pods_of(api: Api, stage: str) -> list[Manifest]:
    """Pods of a stage that are not on their way out."""
    pods = api.list("Pod", f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage={stage}")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def uids(pods: list[Manifest]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def change(api: Api, stage: str, **fields: object) -> None:
    """Edit a stage of the pipeline."""
    pipeline = api.get("OmniPipeline", NAME)
    stage_of(pipeline, stage).update(fields)
    api.replace_spec(pipeline)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rolling_update_of_a_stage_fails_no_call(
    stage: str, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    before, revision = uids(pods_of(speech, stage)), serving_revision(speech, NAME)
    with Load(client, TARGET) as load:
        time.sleep(3)
        change(speech, stage, podAnnotations={"example.com/edited": str(time.time_ns())})
        wait_settled(speech, NAME, timeout_s=300)
        time.sleep(5)
    assert load.answered
    assert not load.failures
    assert serving_revision(speech, NAME) == revision
    assert not uids(pods_of(speech, stage)) & before


def test_a_new_revision_takes_over_and_fails_no_call(
    cluster: Cluster, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    other = f"{STAGE_IMAGE}-other"
    cluster.containerd.ctr("images", "tag", "--force", STAGE_IMAGE, other)
    revision = serving_revision(speech, NAME)
    pipeline = speech.get("OmniPipeline", NAME)
    with Load(client, TARGET, streams=1) as load:
        time.sleep(3)
        pipeline["spec"]["defaults"] = {"image": other}
        speech.replace_spec(pipeline)
        wait_settled(speech, NAME, timeout_s=600)
        time.sleep(5)
    assert load.answered
    assert not load.failures
    assert serving_revision(speech, NAME) != revision


def test_more_replicas_take_traffic_and_fewer_drain(speech: Api, tiny_omni: Manifest, client: ClientPod) -> None:
    with Load(client, TARGET, streams=4) as load:
        change(speech, "token2wav", replicas=3)
        wait_settled(speech, NAME, timeout_s=300)
        names = [pod["metadata"]["name"] for pod in pods_of(speech, "token2wav")]
        assert len(names) == 3
        eventually(
            lambda: all(_served(client, pod) for pod in pods_of(speech, "token2wav")),
            timeout_s=TRAFFIC_WITHIN_S,
            every_s=2,
            why="every replica answers calls",
        )
        change(speech, "token2wav", replicas=1)
        wait_settled(speech, NAME, timeout_s=300)
        eventually(lambda: len(pods_of(speech, "token2wav")) == 1, timeout_s=120, why="two went")
        time.sleep(5)
    assert load.answered
    assert not load.failures


def _served(client: ClientPod, pod: Manifest) -> bool:
    """Whether a stage's pod has answered calls, by its metrics."""
    address = f"http://{pod['status']['podIP']}:9090/metrics"
    text = client.run(
        "python", "-c", f"from urllib.request import urlopen; print(urlopen({address!r}).read().decode())"
    )
    lines = [line for line in text.splitlines() if line.startswith("omni_stage_requests_total")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'code="OK"' in line) > 0
