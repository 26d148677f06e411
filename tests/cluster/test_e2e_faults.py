"""What keeps working on a real node when a pod's process, the kubelet, DNS or the operator is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from support.cluster.client_pod import TARGET, ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.node import cgroups
from support.controlplane.pipelines import condition_of, wait_settled
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.timeout(900)
NAME = "tiny-omni"
# After a fault every call either succeeds or fails within the deadline that the client set.
DEADLINE_S = 30
SLACK_S = 5
OPERATOR = "app.kubernetes.io/name=omnipipeline-operator"
"""Selects the operator's pods only: the gateway runs in the same namespace."""


def pod_of(api: Api, stage: str) -> Manifest:
    (pod,) = api.list("Pod", f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage={stage}")
    return pod


def restarts(pod: Manifest) -> int:
    return sum(status["restartCount"] for status in pod["status"]["containerStatuses"])


def wait_served(client: ClientPod) -> None:
    """Waits until calls are answered again. That takes a while: gRPC resolves names and reconnects with backoff."""

    def served() -> bool:
        with Load(client, TARGET, timeout_s=DEADLINE_S) as load:
            load.wait_answered(4)
        assert not load.failures, load.failures
        return load.answered > 0

    eventually(served, timeout_s=90, every_s=1, why="calls are answered again")


def is_server(command: str) -> bool:
    return "omni_stage serve" in command


def is_engine(command: str) -> bool:
    return "EngineCore" in command


@pytest.mark.parametrize(("stage", "victim"), [("thinker", is_server), ("talker", is_engine)])
def test_a_killed_process_fails_calls_in_time_and_heals(
    stage: str, victim: Callable[[str], bool], speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    """Calls that fail do so within their deadline, with UNAVAILABLE or DEADLINE_EXCEEDED. The stage restarts."""
    pod = pod_of(speech, stage)
    before = restarts(pod)
    with Load(client, TARGET, timeout_s=DEADLINE_S, most_rest_s=0) as load:
        load.wait_answered(4)
        processes = cgroups.pod_processes(pod["metadata"]["uid"])
        (pid,) = [pid for pid, command in processes.items() if victim(command)]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: restarts(pod_of(speech, stage)) > before, timeout_s=60, why="kubelet restarts it")
        wait_settled(speech, NAME, timeout_s=180)
        load.wait_answered(4)
    assert load.answered
    assert all(failure["took_s"] < DEADLINE_S + SLACK_S for failure in load.failures), load.failures
    codes = {failure["code"] for failure in load.failures}
    assert codes <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}, load.failures
    wait_served(client)


def test_nothing_fails_while_the_kubelet_restarts(
    cluster: Cluster, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    pods = {stage: pod_of(speech, stage) for stage in ("thinker", "talker", "token2wav")}
    # The node itself has no DNS resolver: use the Service's cluster IP instead of a name.
    target = f"ipv4:{speech.get('Service', NAME)['spec']['clusterIP']}:50051"
    with Load(client, target, timeout_s=DEADLINE_S, on_node=True) as load:
        load.wait_answered(2)
        cluster.daemon("kubelet").kill()
        time.sleep(10)
        cluster.daemon("kubelet").start()
        time.sleep(20)
    assert load.answered
    assert not load.failures
    wait_settled(speech, NAME, timeout_s=60)
    for stage, pod in pods.items():
        now = pod_of(speech, stage)
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        assert restarts(now) == restarts(pod)


def test_nothing_fails_while_name_service_is_gone_for_a_minute(
    cluster: Cluster, tiny_omni: Manifest, client: ClientPod
) -> None:
    with Load(client, TARGET, timeout_s=DEADLINE_S) as load:
        load.wait_answered(2)
        cluster.daemon("coredns").kill()
        time.sleep(60)
        cluster.daemon("coredns").start()
        load.wait_answered(6)
    assert load.answered
    assert not load.failures


def test_pipelines_serve_and_heal_without_the_operator(
    cluster: Cluster, operator: str, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    system = cluster.admin.in_namespace(operator)
    (deployment,) = system.list("Deployment", OPERATOR)
    name, wanted = deployment["metadata"]["name"], deployment["spec"]["replicas"]
    system.patch("Deployment", name, {"spec": {"replicas": 0}})
    try:
        eventually(lambda: not system.list("Pod", OPERATOR), timeout_s=60, why="no operator")
        with Load(client, TARGET, timeout_s=DEADLINE_S) as load:
            load.wait_answered(10)
        assert load.answered
        assert not load.failures
        pod = pod_of(speech, "token2wav")
        speech.delete("Pod", pod["metadata"]["name"], grace_s=0)
        eventually(lambda: _other_ready(speech, pod), timeout_s=180, why="a new pod is ready")
    finally:
        system.patch("Deployment", name, {"spec": {"replicas": wanted}})
    wait_settled(speech, NAME, timeout_s=120)
    wait_served(client)


def _other_ready(api: Api, old: Manifest) -> bool:
    """Returns whether token2wav has a ready pod other than `old`. For a while it may have no pod."""
    return any(
        condition_of(pod, "Ready").get("status") == "True" and pod["metadata"]["uid"] != old["metadata"]["uid"]
        for pod in api.list("Pod", f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage=token2wav")
    )
