"""The operator recreates deleted children, reverts changes to the fields that it sets, and spares foreign objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, grant_operator, wait_idle
from support.controlplane.pipelines import (
    CHILD_KINDS,
    PIPELINE_LABEL,
    REVISION_LABEL,
    STAGE_LABEL,
    build_two_stages,
    condition_of,
    differences,
    list_children,
    snapshot,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.controlplane

HASH = "omnipipeline.io/desired-hash"


Children = dict[tuple[str, str], Manifest]


@pytest.fixture
def settled(api: Api, operator: OperatorProcess) -> Children:
    """Returns the children of a settled pipeline that only this test uses."""
    return settle(api, operator)


class Patient(NamedTuple):
    """A settled pipeline that many tests share. Each test breaks it and leaves it healed."""

    api: Api
    operator: OperatorProcess
    children: Children


@pytest.fixture(scope="module")
def patient(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    api = control_plane.create_namespace("healing")
    grant_operator(api)
    kubeconfig = control_plane.kubeconfig_for_service_account(api.namespace, "omnipipeline-operator")
    folder = tmp_path_factory.mktemp("healing")
    with OperatorProcess(kubeconfig, folder, namespaces=[api.namespace], fork=True) as operator:
        yield Patient(api, operator, settle(api, operator))
    control_plane.admin.delete("Namespace", api.namespace)


def settle(api: Api, operator: OperatorProcess) -> Children:
    """Creates a pipeline. Returns its children once the operator has stopped writing."""
    api.apply(build_two_stages())
    wait_settled(api)
    wait_idle(operator)
    return snapshot(api)


def assert_heals(api: Api, before: Children) -> None:
    def healed() -> bool:
        assert differences(before, snapshot(api)) == []
        assert all(HASH in child["metadata"]["annotations"] for child in list_children(api).values())
        return True

    eventually(healed, why="healed")


@pytest.mark.parametrize("kind", CHILD_KINDS)
def test_a_deleted_child_comes_back(patient: Patient, kind: str) -> None:
    names = [name for child_kind, name in patient.children if child_kind == kind]
    assert names
    for name in names:
        patient.api.delete(kind, name)
    assert_heals(patient.api, patient.children)
    wait_settled(patient.api)


class HandEdit(NamedTuple):
    name: str
    kind: str
    change: list[Manifest]


def _label(key: str) -> str:
    return "/metadata/labels/" + key.replace("/", "~1")


EDITS = [
    HandEdit("scaled", "Deployment", [{"op": "replace", "path": "/spec/replicas", "value": 5}]),
    HandEdit(
        "other image",
        "Deployment",
        [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.com/evil:1"}],
    ),
    HandEdit(
        "environment variable changed",
        "Deployment",
        [{"op": "replace", "path": "/spec/template/spec/containers/0/env/0/value", "value": "/evil"}],
    ),
    HandEdit(
        "probe removed", "Deployment", [{"op": "remove", "path": "/spec/template/spec/containers/0/livenessProbe"}]
    ),
    HandEdit(
        "read-only root taken away",
        "Deployment",
        [
            {
                "op": "replace",
                "path": "/spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem",
                "value": False,
            }
        ],
    ),
    HandEdit("selector", "Service", [{"op": "replace", "path": "/spec/selector", "value": {"app": "evil"}}]),
    HandEdit("selector narrowed", "Service", [{"op": "add", "path": "/spec/selector/evil", "value": "1"}]),
    HandEdit(
        "pods left out", "NetworkPolicy", [{"op": "add", "path": "/spec/podSelector/matchLabels/evil", "value": "1"}]
    ),
    HandEdit(
        "callers of other namespaces",
        "NetworkPolicy",
        [{"op": "add", "path": "/spec/ingress/0/from/0/namespaceSelector", "value": {}}],
    ),
    HandEdit("port", "Service", [{"op": "replace", "path": "/spec/ports/0/port", "value": 1}]),
    HandEdit("rules opened", "NetworkPolicy", [{"op": "replace", "path": "/spec/ingress", "value": [{}]}]),
    HandEdit("budget", "PodDisruptionBudget", [{"op": "replace", "path": "/spec/maxUnavailable", "value": 2}]),
    HandEdit(
        "token mounted", "ServiceAccount", [{"op": "replace", "path": "/automountServiceAccountToken", "value": True}]
    ),
    HandEdit("pipeline label removed", "Service", [{"op": "remove", "path": _label(PIPELINE_LABEL)}]),
    HandEdit("pipeline label removed", "Deployment", [{"op": "remove", "path": _label(PIPELINE_LABEL)}]),
    HandEdit("stage label changed", "Deployment", [{"op": "replace", "path": _label(STAGE_LABEL), "value": "x"}]),
    HandEdit("revision label changed", "ConfigMap", [{"op": "replace", "path": _label(REVISION_LABEL), "value": "x"}]),
    HandEdit(
        "desired hash removed",
        "Deployment",
        [{"op": "remove", "path": "/metadata/annotations/omnipipeline.io~1desired-hash"}],
    ),
]


@pytest.mark.parametrize("edit", EDITS, ids=[f"{edit.kind}: {edit.name}" for edit in EDITS])
def test_a_hand_edit_is_undone(patient: Patient, edit: HandEdit) -> None:
    name = next(name for kind, name in sorted(patient.children) if kind == edit.kind)
    version = patient.api.get(edit.kind, name)["metadata"]["resourceVersion"]
    assert patient.api.patch(edit.kind, name, edit.change)["metadata"]["resourceVersion"] != version
    assert_heals(patient.api, patient.children)
    wait_settled(patient.api)


def test_an_edited_label_does_not_orphan(patient: Patient) -> None:
    """Children with a changed pipeline label are found by their names, so no stage gets a second Deployment."""
    for kind, name in patient.children:
        patient.api.patch(kind, name, {"metadata": {"labels": {PIPELINE_LABEL: "another"}}})
    assert_heals(patient.api, patient.children)
    wait_settled(patient.api)


def test_what_others_add_is_left_alone(api: Api, operator: OperatorProcess, settled: Children) -> None:
    name = next(name for kind, name in settled if kind == "Deployment")
    addition = {"metadata": {"labels": {"team.example.com/cost": "7"}, "annotations": {"example.com/note": "hello"}}}
    api.patch("Deployment", name, addition)
    wait_idle(operator)
    metadata = api.get("Deployment", name)["metadata"]
    assert metadata["labels"]["team.example.com/cost"] == "7"
    assert metadata["annotations"]["example.com/note"] == "hello"


def test_a_restarted_rollout_is_left_alone(api: Api, operator: OperatorProcess, settled: Children) -> None:
    """`kubectl rollout restart` adds a foreign annotation to the pod template, which the operator keeps."""
    name = next(name for kind, name in settled if kind == "Deployment")
    old = {pod["metadata"]["uid"] for pod in api.list("Pod")}
    stamp = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    api.patch("Deployment", name, {"spec": {"template": {"metadata": {"annotations": stamp}}}})
    eventually(lambda: len({pod["metadata"]["uid"] for pod in api.list("Pod")} - old) > 0)
    wait_settled(api)
    wait_idle(operator)
    assert api.get("Deployment", name)["spec"]["template"]["metadata"]["annotations"].items() >= stamp.items()


def test_an_autoscaler_on_a_deployment_is_reported(api: Api, operator: OperatorProcess, settled: Children) -> None:
    """It sets the replicas after each write, as an HPA does, until the operator reports it."""
    name = next(name for kind, name in settled if kind == "Deployment")
    wanted = api.get("Deployment", name)["spec"]["replicas"]

    def reported() -> Manifest | None:
        api.patch("Deployment", name, {"spec": {"replicas": wanted + 1}})
        degraded = condition_of(api.get("OmniPipeline", "omni"), "Degraded")
        return degraded if degraded["reason"] == "ChangedByOthers" else None

    degraded = eventually(reported) or {}
    assert degraded["status"] == "True"
    assert f"Deployment {name} (spec.replicas)" in degraded["message"]
    # The spec still rules.
    api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 60}}})
    eventually(lambda: api.get("Deployment", name)["spec"]["replicas"] == wanted, why="written")


class Foreign(NamedTuple):
    kind: str
    spec: Manifest


FOREIGN = [
    Foreign("Service", {"spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}}),
    Foreign("ServiceAccount", {}),
    Foreign("Deployment", {}),
    Foreign("NetworkPolicy", {"spec": {"podSelector": {}}}),
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=[foreign.kind for foreign in FOREIGN])
def test_a_foreign_object_with_a_childs_name(
    api: Api, make_operator: Callable[..., OperatorProcess], foreign: Foreign
) -> None:
    """The operator never touches the foreign object. The status names it until it is deleted and the child is made."""
    with make_operator():
        api.apply(build_two_stages())
        wait_settled(api)
        expected = snapshot(api)
    name = next(name for kind, name in sorted(expected) if kind == foreign.kind)
    api.delete("OmniPipeline", "omni")
    eventually(lambda: not any(api.list(kind, labels=f"{PIPELINE_LABEL}=omni") for kind in CHILD_KINDS))
    manifest = {"apiVersion": expected[foreign.kind, name]["apiVersion"], "kind": foreign.kind, **foreign.spec}
    if foreign.kind == "Deployment":
        manifest["spec"] = {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "main", "image": "example.com/theirs:1"}]},
            },
        }
    theirs = api.create({**manifest, "metadata": {"name": name, "labels": {PIPELINE_LABEL: "omni"}}})
    with make_operator() as operator:
        api.apply(build_two_stages())
        degraded = wait_condition(api, "Degraded", status="True", reason="ChildConflict")
        assert name in degraded["message"]
        assert foreign.kind in degraded["message"]
        wait_idle(operator)
        live = api.get(foreign.kind, name)
        assert live["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert "ownerReferences" not in live["metadata"]
        assert live.get("spec", {}).get("selector") == theirs.get("spec", {}).get("selector")
        assert not any(m["manager"] == "omnipipeline-operator" for m in live["metadata"]["managedFields"])
        api.delete(foreign.kind, name)
        # The operator sees this deletion because the object has our label. Without the label no watch would report it.
        wait_condition(api, "Degraded", status="False")
        wait_settled(api)
        eventually(lambda: set(list_children(api)) == set(expected), why="the child is made")


def test_a_foreign_object_that_no_watch_shows(api: Api, operator: OperatorProcess) -> None:
    """The operator notices a foreign object without our label when it creates the child of that name.

    It creates all other children.
    """
    metadata = {"name": "omni-stages", "namespace": api.namespace}
    theirs = api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    api.apply(build_two_stages())
    degraded = wait_condition(api, "Degraded", status="True", reason="ChildConflict")
    assert "ServiceAccount" in degraded["message"]
    wait_idle(operator)
    assert api.get("ServiceAccount", "omni-stages") == theirs
    eventually(lambda: {kind for kind, _ in list_children(api)} == set(CHILD_KINDS) - {"ServiceAccount"})


def test_a_foreign_object_with_our_labels_is_not_pruned(api: Api, operator: OperatorProcess, settled: Children) -> None:
    labels = next(child["metadata"]["labels"] for (kind, _), child in settled.items() if kind == "ConfigMap")
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "labels": labels}}
    api.create({**theirs, "data": {"a": "b"}})
    api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 60}}})
    wait_settled(api)
    wait_idle(operator)
    assert api.get("ConfigMap", "theirs")["data"] == {"a": "b"}
