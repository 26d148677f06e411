"""The chart's gateway on a real node, called by OpenAI's own client while a pipeline or the gateway rolls out."""

from __future__ import annotations

import time

import pytest

from support.cluster.changes import Changes
from support.cluster.client_pod import ClientPod, OpenAiLoad
from support.cluster.cluster import Cluster
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.timeout(600)

NAME = "omnipipeline-gateway"
MODEL = "speech/tiny-omni"
"""NAMESPACE/NAME, because another test may serve a pipeline of the same name."""


@pytest.fixture(scope="module")
def system(cluster: Cluster, operator: str) -> Api:
    return cluster.admin.in_namespace(operator)


@pytest.fixture(scope="module")
def url(system: Api) -> str:
    """Returns the gateway's address inside the cluster, which also works on the node."""
    return f"http://{system.get('Service', NAME)['spec']['clusterIP']}:8000/v1"


def pods_of(system: Api) -> dict[str, str]:
    """Returns name -> uid of the gateway's pods that are not being deleted."""
    pods = system.list("Pod", f"app.kubernetes.io/name={NAME}")
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]
    }


def is_rolled_out(system: Api, generation: int) -> bool:
    deployment = system.get("Deployment", NAME)
    status, wanted = deployment["status"], deployment["spec"]["replicas"]
    counts = [status.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return status.get("observedGeneration", 0) >= generation and counts == [wanted] * 3


def test_a_rolling_update_of_the_entry_fails_no_call(
    cluster: Cluster, speech: Api, tiny_omni: Manifest, client: ClientPod, url: str
) -> None:
    """No call fails while the entry stage rolls out. Our client calls it directly, and OpenAI's through the gateway.

    Our client and the gateway both connect to the entry stage. test_e2e_rollouts.py rolls out the other stages.
    """
    with OpenAiLoad(client, url, MODEL, streams=2) as through_gateway:
        direct = Changes(cluster, speech, client).roll("thinker")
    for load in (direct, through_gateway):
        assert not load.failures
        assert load.answered > 5


def test_a_rollout_of_the_gateway_fails_no_request(
    system: Api, tiny_omni: Manifest, client: ClientPod, url: str
) -> None:
    before = pods_of(system)
    assert len(before) == 2
    with OpenAiLoad(client, url, MODEL) as load:
        load.wait_answered(3)
        restarted = {"kubectl.kubernetes.io/restartedAt": str(time.time_ns())}
        patch = {"spec": {"template": {"metadata": {"annotations": restarted}}}}
        generation = system.patch("Deployment", NAME, patch)["metadata"]["generation"]
        eventually(lambda: is_rolled_out(system, generation), timeout_s=180, why="the gateway has rolled out")
        # A draining pod still answers clients that stay connected to it, so the load continues until the pod is gone.
        eventually(
            lambda: not before.keys() & {pod["metadata"]["name"] for pod in system.list("Pod")},
            timeout_s=60,
            why="the old pods have drained",
        )
        load.wait_answered(6)
    assert not set(before.values()) & set(pods_of(system).values())
    assert not load.failures
    assert load.answered > 5


def test_both_pods_answer_and_ready_pipelines_are_their_models(
    cluster: Cluster, system: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    """Each gateway pod lists the sample's model and its alias gpt-4o-mini-tts to a client in another pod."""
    for name in pods_of(system):
        address = f"http://{system.get('Pod', name)['status']['podIP']}:8000/v1/models"
        told = client.run(
            "python", "-c", f"from urllib.request import urlopen; print(urlopen({address!r}).read().decode())"
        )
        assert "tiny-omni" in told
        assert "gpt-4o-mini-tts" in told
