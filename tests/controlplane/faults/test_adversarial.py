"""The operator beside misbehaving users of the cluster: rival field managers, floods of edits, crowds of pods."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    PIPELINE_LABEL,
    REVISION_LABEL,
    STAGE_LABEL,
    build_pipeline,
    build_stage,
    condition_of,
    is_settled,
    list_children,
    revisions,
    serving_revision,
    snapshot,
    wait_condition,
    wait_settled,
    written,
)
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

CROWD = 300
MIB = 1 << 20
FOREIGN = 60
"""Number of ConfigMaps of about 1 MiB that have our label, but no owner."""


def test_another_manager_takes_our_fields(api: Api, operator: OperatorProcess) -> None:
    """Another field manager applies with force three times. Our value returns, and no other field stays changed."""
    api.apply(build_pipeline())
    wait_settled(api)
    name = next(name for kind, name in list_children(api) if kind == "Deployment")
    expected = snapshot(api)
    for replicas in (2, 3, 4):
        theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
        api.apply({**theirs, "spec": {"replicas": replicas}}, manager="rival", force=True)
        eventually(lambda: api.get("Deployment", name)["spec"]["replicas"] == 1, timeout_s=PATIENCE_S)
    eventually(lambda: snapshot(api) == expected)
    wait_idle(operator)
    assert operator.metrics()["omni_operator_noop_applies_total"] == 0


def test_objects_that_others_label_do_not_fill_the_operator(
    api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    """Foreign objects with our label grow the operator's memory by less than a third of their size.

    In an earlier version, 300 of them grew it to 449 MiB, with a limit of 512 MiB.
    """
    with make_operator() as operator:
        api.apply(build_pipeline())
        wait_settled(api)
        before = operator.rss_bytes()
    for number in range(FOREIGN):
        metadata = {"name": f"foreign-{number}", "labels": {PIPELINE_LABEL: "omni"}}
        data = {"x": "x" * (MIB - 4096)}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    with make_operator() as operator:
        operator.wait_reconciled()
        assert operator.rss_bytes() - before < FOREIGN * MIB / 3
        wait_settled(api)


def test_a_namespace_has_so_many_pipelines(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """A pipeline beyond --max-pipelines gets no children, and its status says why."""
    with make_operator("--max-pipelines=1") as operator:
        api.apply(build_pipeline("first"))
        wait_condition(api, "Ready", "first", status="True")
        later = api.apply(build_pipeline("second"))
        found = wait_condition(api, "Ready", "second", status="False", reason="TooManyPipelines")
        assert "--max-pipelines" in found["message"]
        assert list_children(api, later["metadata"]["name"]) == {}
        wait_condition(api, "Ready", "first", status="True")
        assert operator.http("health", "/healthz")[0] == 200
        # Not "error": one tenant's pipelines must not raise the alert OmniOperatorReconcileErrors.
        assert operator.metrics()['omni_operator_reconcile_total{result="refused"}'] >= 1


def test_another_manager_adds_fields_that_we_do_not_set(api: Api, operator: OperatorProcess) -> None:
    """The other manager's fields stay, and do not make the operator write again."""
    api.apply(build_pipeline())
    wait_settled(api)
    name = next(name for kind, name in list_children(api) if kind == "Deployment")
    theirs = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}}
    api.apply({**theirs, "spec": {"minReadySeconds": 1, "revisionHistoryLimit": 3}}, manager="other", force=True)
    wait_settled(api)
    wait_idle(operator)
    children, reconciles = written(api), operator.count_reconciles()
    api.patch("OmniPipeline", "omni", {"metadata": {"annotations": {"example.com/poke": "1"}}})
    operator.wait_reconciled(reconciles + 1)
    wait_idle(operator)
    assert written(api) == children
    assert operator.metrics()["omni_operator_noop_applies_total"] == 0


def test_thirty_rapid_edits(api: Api, operator: OperatorProcess) -> None:
    """The children have the last of thirty rapid edits, and one revision is left."""
    api.apply(build_pipeline())
    wait_settled(api)
    for number in range(30):
        change = {"spec": {"timeouts": {"request": 100 + number}}}
        if number % 10 == 9:
            change["spec"]["defaults"] = {"image": f"example.com/stage:{number}"}
        api.patch("OmniPipeline", "omni", change)
    final = wait_settled(api)
    assert final["spec"]["timeouts"]["request"] == 129
    eventually(lambda: revisions(api) == {serving_revision(api)})
    images = {c["image"] for d in api.list("Deployment") for c in d["spec"]["template"]["spec"]["containers"]}
    assert images == {"example.com/stage:29"}
    configs = [child["data"]["stage.yaml"] for (kind, _), child in list_children(api).items() if kind == "ConfigMap"]
    eventually(lambda: len([1 for kind, _ in list_children(api) if kind == "ConfigMap"]) == 3)
    assert any("129" in config for config in configs)
    wait_idle(operator)
    assert operator.metrics()["omni_operator_noop_applies_total"] == 0


def test_edits_and_hand_edits_at_once(api: Api, operator: OperatorProcess) -> None:
    """The operator restores the children after concurrent edits of the pipeline and of its children."""
    api.apply(build_pipeline())
    wait_settled(api)
    done = threading.Event()

    def vandal() -> None:
        while not done.wait(0.02):
            for deployment in api.list("Deployment"):
                with_errors(
                    lambda d=deployment: api.patch("Deployment", d["metadata"]["name"], {"spec": {"replicas": 3}})
                )
            for service in api.list("Service"):
                with_errors(lambda s=service: api.delete("Service", s["metadata"]["name"]))

    thread = threading.Thread(target=vandal)
    thread.start()
    try:
        for number in range(5):
            api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 100 + number}}})
            done.wait(0.3)
    finally:
        done.set()
        thread.join()
    wait_settled(api)
    eventually(lambda: all(d["spec"]["replicas"] == 1 for d in api.list("Deployment")), timeout_s=PATIENCE_S)
    eventually(lambda: len(api.list("Service")) == 5, timeout_s=PATIENCE_S)


def with_errors(action: Callable[[], object]) -> None:
    """Calls `action`. Ignores 404 and 409: the operator may have changed the object first."""
    from support.controlplane.server.api import ApiError

    try:
        action()
    except ApiError as error:
        if error.code not in (404, 409):
            raise


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, api_server: ApiServer) -> Api:
    """Returns a client in a namespace with 300 foreign pods, half of them with our labels. No scheduler runs."""
    api = api_server.create_namespace("crowded")

    def create(index: int) -> None:
        labels = {"app": "crowd"}
        if index % 2:
            labels |= {PIPELINE_LABEL: "omni", STAGE_LABEL: "thinker", REVISION_LABEL: "0000000"}
        container = {"name": "main", "image": "example.com/crowd:1"}
        metadata = {"name": f"crowd-{index}", "labels": labels}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(CROWD)))
    return api


def test_a_crowd_of_foreign_pods(api_server: ApiServer, crowded: Api, tmp_path: Path) -> None:
    """Foreign pods with our labels are neither counted as replicas nor deleted."""
    with FaultProxy(api_server) as proxy:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "operator"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": crowded.namespace}],
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        }
        crowded.apply(binding)
        kubeconfig = api_server.kubeconfig_for_service_account(crowded.namespace, "operator", server=proxy.url)
        with OperatorProcess(kubeconfig, tmp_path, namespaces=[crowded.namespace], fork=True) as operator:
            stages = [build_stage("thinker", outputs=["Text"])]
            crowded.apply(build_pipeline(stages=stages))
            eventually(lambda: condition_of(crowded.get("OmniPipeline", "omni"), "Ready").get("status") == "False")
            eventually(lambda: any(kind == "Deployment" for kind, _ in list_children(crowded)))
            wait_idle(operator)
            status = crowded.get("OmniPipeline", "omni")["status"]
            assert [(stage["name"], stage["readyReplicas"]) for stage in status["stages"]] == [("thinker", 0)]
            assert not is_settled(crowded.get("OmniPipeline", "omni"))
            assert len(crowded.list("Pod")) == CROWD, "foreign pods were deleted"
            assert operator.metrics()["omni_operator_noop_applies_total"] == 0
        assert any(call.resource == "pods" and call.verb == "list" for call in proxy.calls)
