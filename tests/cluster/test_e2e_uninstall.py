"""The Helm release: `helm test`, an upgrade and its rollback, and `helm uninstall` as in docs/install.md.

None of these interrupts a pipeline. The file's name makes these tests run last, because they remove the operator.
"""

from __future__ import annotations

import pytest

from support.cluster.client_pod import TARGET, ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.workload import CHART, helm, install_operator
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.timeout(900)
OURS = (
    *("app.kubernetes.io/name=omnipipeline-operator", "app.kubernetes.io/name=omnipipeline-gateway"),
    "omnipipeline.io/pipeline",
)
# Not searched: the CRD, which an uninstall keeps, and events, which the cluster makes.
LEFT_OUT = ("events", "events.events.k8s.io", "customresourcedefinitions.apiextensions.k8s.io")


def find_ours(cluster: Cluster) -> list[str]:
    """Returns every object in the cluster that has our labels, of all kinds except LEFT_OUT."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").stdout.split()
    asked = ",".join(kind for kind in kinds if kind not in LEFT_OUT)
    found: list[str] = []
    for selector in OURS:
        found += cluster.kubectl(
            "get", asked, "--all-namespaces", f"--selector={selector}", "--output=name", timeout_s=120
        ).stdout.split()
    return found


def pods_of(api: Api) -> set[tuple[str, int]]:
    """Returns (uid, restarts) of every pod of the pipeline."""
    return {
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in api.list("Pod", "omnipipeline.io/pipeline=tiny-omni")
    }


def test_helm_test(cluster: Cluster, operator: str) -> None:
    # Without --logs, because Helm removes a test pod as soon as it succeeds. So an uninstall leaves no test pod.
    told = helm(cluster, "test", "omnipipeline", "--namespace", operator, "--timeout", "2m")
    assert "Phase:          Succeeded" in told


def log_level(cluster: Cluster, namespace: str) -> str:
    """Returns the log level that the operator's Deployment sets."""
    (deployment,) = cluster.admin.in_namespace(namespace).list("Deployment", OURS[0])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return next(str(entry["value"]) for entry in container["env"] if entry["name"] == "OMNI_OPERATOR_LOG_LEVEL")


def test_an_upgrade_and_its_rollback_disturb_no_pipeline(
    cluster: Cluster, operator: str, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    wait_settled(speech, "tiny-omni", timeout_s=120)
    before = pods_of(speech)
    release = ("omnipipeline", "--namespace", operator, "--wait", "--timeout", "3m")
    with Load(client, TARGET) as load:
        helm(cluster, "upgrade", *release, "--reuse-values", "--set", "operator.logLevel=debug", CHART)
        assert log_level(cluster, operator) == "debug"
        helm(cluster, "rollback", *release)
        assert log_level(cluster, operator) == "info"
        # Proves that the operator reconciles after the rollback. The load uses the headless Service, not this one.
        speech.delete("Service", "tiny-omni")
        eventually(lambda: speech.find("Service", "tiny-omni"), timeout_s=60, why="the Service is made again")
        wait_settled(speech, "tiny-omni", timeout_s=120)
    assert load.answered
    assert not load.failures
    assert pods_of(speech) == before


def test_uninstalled_pipelines_serve_and_a_later_install_restarts_nothing(
    cluster: Cluster, operator: str, speech: Api, tiny_omni: Manifest, client: ClientPod
) -> None:
    wait_settled(speech, "tiny-omni", timeout_s=120)
    before = pods_of(speech)
    with Load(client, TARGET) as load:
        helm(cluster, "uninstall", "omnipipeline", "--namespace", operator, "--wait")
        assert not [name for name in find_ours(cluster) if "operator" in name]
        load.wait_answered(6)
        install_operator(cluster, operator)
        wait_settled(speech, "tiny-omni", timeout_s=120)
        load.wait_answered(6)
    assert load.answered
    assert not load.failures
    assert pods_of(speech) == before


def test_what_an_uninstall_leaves(cluster: Cluster, operator: str, tiny_omni: Manifest) -> None:
    cluster.kubectl("delete", "omnipipelines", "--all", "--all-namespaces", timeout_s=120)
    eventually(lambda: not cluster.admin.list("OmniPipeline"), why="no pipeline is left")
    helm(cluster, "uninstall", "omnipipeline", "--namespace", operator, "--wait")
    # Children are deleted in the background after their pipeline, and a pod has its grace period.
    eventually(lambda: not find_ours(cluster), timeout_s=120, every_s=2, why="nothing with our labels is left")
    kept = cluster.kubectl("get", "crd,leases", "--namespace", operator, "--output=name").stdout
    assert "omnipipelines.omnipipeline.io" in kept
    assert "lease.coordination.k8s.io/" in kept
    claims = cluster.kubectl("get", "pvc", "--namespace", "speech", "--output=name").stdout
    assert "persistentvolumeclaim/models" in claims
