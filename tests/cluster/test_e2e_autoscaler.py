"""A HorizontalPodAutoscaler on CPU drives a stage, as docs/scaling.md shows it: metrics-server, kubelet and the HPA
controller are Kubernetes' own."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import yaml

from support.cluster.client_pod import ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.node.daemon import Daemon
from support.cluster.workload import SAMPLES, SYSTEM
from support.controlplane.binaries import find_binaries
from support.controlplane.pipelines import condition_of, wait_settled
from support.controlplane.server.api import Api, eventually
from support.processes.polling import PATIENCE_S

# Two to four minutes: the controller looks every 15 s, metrics-server as often, and that is built once (minutes).
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
SPEECH = "speech"
NAME = "hpa-omni"
MOST = 3
PORT = 4443


@pytest.fixture
def metrics_server(cluster: Cluster, operator: str) -> Iterator[Daemon]:
    """Runs metrics-server on the node, with an administrator's rights."""
    program = find_binaries("metrics-server")["metrics-server"]
    folder = cluster.layout.run
    flags = [f"--{use}kubeconfig={cluster.kubeconfig}" for use in ("", "authentication-", "authorization-")]
    flags += [f"--secure-port={PORT}", f"--cert-dir={folder / 'metrics-server'}", "--kubelet-use-node-status-port"]
    flags += [f"--kubelet-certificate-authority={folder / 'pki' / 'ca.crt'}"]
    flags += ["--kubelet-preferred-address-types=InternalIP", "--metric-resolution=15s"]
    daemon = Daemon(cluster.layout, "metrics-server", [program, *flags])
    cluster.publish_api("v1beta1.metrics.k8s.io", SYSTEM, PORT)
    daemon.start()
    yield daemon
    daemon.stop()
    cluster.admin.delete("APIService", "v1beta1.metrics.k8s.io")


def test_cpu_drives_a_stage_up_and_down(
    cluster: Cluster, speech: Api, client: ClientPod, metrics_server: Daemon
) -> None:
    pipeline = yaml.safe_load((SAMPLES / "sim-omni.yaml").read_text())
    pipeline["metadata"]["name"] = NAME
    thinker = pipeline["spec"]["stages"][0]
    thinker["scaling"] = {"by": "External"}
    # An idle pod uses a few millicores.
    thinker["resources"]["requests"]["cpu"] = "50m"
    speech.apply(pipeline)
    wait_settled(speech, NAME, timeout_s=2 * PATIENCE_S)
    target = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniStage", "name": f"{NAME}-thinker"}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 100}}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": MOST,
        "metrics": [{"type": "Resource", "resource": cpu}],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": NAME}}
    speech.apply({**autoscaler, "spec": spec})
    seen: list[str] = []

    def pods() -> int:
        """Returns how many pods of the thinker are Ready; notes what the autoscaler said."""
        status = speech.get("HorizontalPodAutoscaler", NAME).get("status", {})
        metrics = status.get("currentMetrics") or [{}]
        used = metrics[0].get("resource", {}).get("current", {}).get("averageUtilization")
        said = f"{used} % -> {status.get('desiredReplicas')}"
        if seen[-1:] != [said]:
            seen.append(said)
        labels = f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage=thinker"
        return sum(condition_of(pod, "Ready").get("status") == "True" for pod in speech.list("Pod", labels))

    def active() -> bool:
        autoscaler = speech.get("HorizontalPodAutoscaler", NAME)
        return condition_of(autoscaler, "ScalingActive").get("status") == "True" and pods() == 1

    try:
        eventually(active, timeout_s=3 * PATIENCE_S, why="the autoscaler reads the pods' CPU")
        with Load(
            client, f"dns:///{NAME}-headless.{SPEECH}.svc.cluster.local.:50051", streams=16, most_rest_s=0
        ) as load:
            eventually(lambda: pods() == MOST, timeout_s=3 * PATIENCE_S, why="the autoscaler adds pods")
        eventually(lambda: pods() == 1, timeout_s=4 * PATIENCE_S, why="the autoscaler removes them")
    finally:
        sys.stdout.write(f"\nHPA: {', '.join(seen)}\n")
        speech.delete("HorizontalPodAutoscaler", NAME)
    assert load.answered
    assert not load.failures
    # The operator never undid what the autoscaler set.
    assert [one["replicas"] for one in speech.get("OmniPipeline", NAME)["status"]["stages"]] == [1, 1, 1]
    speech.delete("OmniPipeline", NAME)
