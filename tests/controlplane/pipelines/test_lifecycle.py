"""The life of an OmniPipeline on a real control plane: creation, every kind of edit, deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from omni_cli.commands.render import render_children
from omni_operator.desired.build_settings import BuildSettings
from omni_proto.pipeline.read.load import type_document
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    IMAGE,
    build_pipeline,
    build_stage,
    condition_of,
    list_children,
    list_labelled,
    revisions,
    serving_revision,
    stage_of,
    wait_available,
    wait_condition,
    wait_settled,
    written,
)
from support.controlplane.server.api import Api, Manifest, eventually
from support.controlplane.server.fault_proxy import POD_CHANGES, FaultProxy
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane


def noop_applies(operator: OperatorProcess) -> float:
    return operator.metrics()["omni_operator_noop_applies_total"]


def test_create(api: Api, proxy: FaultProxy, make_operator: Callable[..., OperatorProcess]) -> None:
    proxy.hold_watches(*POD_CHANGES)
    with make_operator("--debounce=2", server=proxy.url) as operator:
        api.create(build_pipeline())
        wait_available(api, 3)
        proxy.flow()
        _check_created(api, operator)


def _check_created(api: Api, operator: OperatorProcess) -> None:
    pipeline = wait_settled(api)
    status = pipeline["status"]
    assert status["observedGeneration"] == 1
    assert status["readyStages"] == "3/3"
    assert status["url"] == f"grpc://omni.{api.namespace}.svc:50051"
    assert {s["name"]: (s["replicas"], s["readyReplicas"]) for s in status["stages"]} == {
        "thinker": (1, 1),
        "talker": (1, 1),
        "token2wav": (1, 1),
    }
    assert {s["revision"] for s in status["stages"]} == revisions(api) == {serving_revision(api)}
    assert condition_of(pipeline, "Degraded")["status"] == "False"

    children = list_children(api)
    # ServiceAccount, two Services and ControllerRevision; Deployment, Service, ConfigMap and NetworkPolicy per stage.
    assert len(children) == 3 + 1 + 3 * 4
    wait_idle(operator)
    metrics = operator.metrics()
    assert metrics['omni_operator_api_calls_total{code="201",verb="patch"}'] == len(children)
    assert metrics["omni_operator_noop_applies_total"] == 0
    assert metrics["omni_operator_status_writes_total"] <= 3


def test_nothing_is_written_while_nothing_changes(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    with make_operator("--resync", "1") as operator:
        api.create(build_pipeline())
        wait_settled(api)
        wait_idle(operator)
        before = operator.count_writes()
        reconciles = operator.metrics()['omni_operator_reconcile_total{result="unchanged"}']
        eventually(lambda: operator.metrics()['omni_operator_reconcile_total{result="unchanged"}'] >= reconciles + 3)
        assert operator.count_writes() == before


class Edit(NamedTuple):
    """A change of the spec, in addition to the edits listed before it."""

    name: str
    change: Callable[[Manifest], Any]


def _set(*path: str | int, value: Any) -> Callable[[Manifest], Any]:
    def change(pipeline: Manifest) -> None:
        target: Any = pipeline["spec"]
        for part in path[:-1]:
            target = target[part] if isinstance(part, int) else target.setdefault(part, {})
        target[path[-1]] = value

    return change


def _rename_stage(pipeline: Manifest) -> None:
    stage_of(pipeline, "token2wav")["name"] = "vocoder"


def _rename_entry(pipeline: Manifest) -> None:
    stage_of(pipeline, "thinker")["name"] = "reader"
    for name in ("talker", "talker2"):
        stage_of(pipeline, name)["inputs"] = [{"from": "reader"}]


def _remove_stage(pipeline: Manifest) -> None:
    stages = pipeline["spec"]["stages"]
    stages.remove(stage_of(pipeline, "vocoder"))
    # The built-in talker cannot return audio to the client, so another component replaces it.
    stage_of(pipeline, "talker").update(component="acme/talker", outputs=["Audio"])


def _add_stage(pipeline: Manifest) -> None:
    second = build_stage("talker2", after="thinker", outputs=["Audio"], component="acme/talker")
    pipeline["spec"]["stages"].append(second)


IN_PLACE = (
    Edit("scale up", _set("stages", 1, "replicas", value=3)),
    Edit("scale down", _set("stages", 1, "replicas", value=1)),
    Edit("engine arguments", _set("stages", 0, "engineArgs", value={"maxNumSeqs": 8})),
    Edit("default sampling", _set("stages", 0, "defaultSampling", value={"temperature": 0.5})),
    Edit("request timeout", _set("timeouts", "request", value=60)),
    Edit("resources", _set("stages", 0, "resources", value={"limits": {"nvidia.com/gpu": 1}})),
    Edit("pod annotation", _set("defaults", "podAnnotations", value={"team.example.com/x": "y"})),
    Edit("node selector", _set("defaults", "nodeSelector", value={"kubernetes.io/hostname": "node-1"})),
)
REVISED = (
    Edit("image", _set("defaults", "image", value="example.com/stage:2")),
    Edit("image of a stage", _set("stages", 1, "image", value="example.com/talker:2")),
    Edit("model revision", _set("model", value={"uri": "hf://org/tiny", "revision": "v2"})),
    Edit("dtype", _set("stages", 0, "engineArgs", value={"dtype": "float16"})),
    Edit("edge mode", _set("stages", 1, "inputs", value=[{"from": "thinker", "mode": "Stream"}])),
    Edit("stage added", _add_stage),
    Edit("stage renamed", _rename_stage),
    Edit("entry renamed", _rename_entry),
    Edit("stage removed", _remove_stage),
)


@pytest.mark.parametrize(("edits", "revised"), [(IN_PLACE, False), (REVISED, True)], ids=["in place", "revised"])
def test_edits(api: Api, operator: OperatorProcess, edits: Sequence[Edit], revised: bool) -> None:
    pipeline = build_pipeline()
    api.apply(pipeline)
    wait_settled(api)
    for edit in edits:
        before = revisions(api)
        edit.change(pipeline)
        api.apply(pipeline)
        wait_settled(api)
        assert (revisions(api) != before) is revised, edit.name
        assert revisions(api) == {serving_revision(api)}, edit.name
        # The children are those of a pipeline created with this spec: none is missing and none is left over.
        assert_children_as_rendered(api)
        wait_idle(operator)
        assert noop_applies(operator) == 0, edit.name


def test_scaled_to_zero(api: Api, operator: OperatorProcess) -> None:
    pipeline = build_pipeline()
    api.apply(pipeline)
    wait_settled(api)
    before = revisions(api)
    _set("stages", 2, "replicas", value=0)(pipeline)
    api.apply(pipeline)
    wait_condition(api, "Ready", status="False", reason="ScaledToZero")
    assert revisions(api) == before == {serving_revision(api)}
    assert_children_as_rendered(api)
    wait_idle(operator)
    assert noop_applies(operator) == 0


def assert_children_as_rendered(api: Api) -> None:
    """Waits until the children have the kinds and names of those that `omnipipe render` prints for the pipeline."""
    live = api.get("OmniPipeline", "omni")
    typed = type_document({key: live[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    rendered = {
        (child["kind"], child["metadata"]["name"]) for child in render_children(typed, api.namespace, BuildSettings())
    }

    def as_rendered() -> bool:
        assert set(list_children(api)) == rendered, set(list_children(api)) ^ rendered
        return True

    eventually(as_rendered, why="children as rendered")


def test_suspend_and_resume(api: Api, operator: OperatorProcess) -> None:
    api.apply(build_pipeline())
    wait_settled(api)
    children = without_snapshot(api)
    api.patch("OmniPipeline", "omni", {"spec": {"suspend": True}})
    wait_condition(api, "Ready", status="False", reason="Suspended")
    eventually(lambda: not api.list("Pod"), why="pods end")
    wait_condition(api, "Progressing", status="False")
    assert without_snapshot(api) == children
    api.patch("OmniPipeline", "omni", {"spec": {"suspend": False}})
    wait_settled(api)


def without_snapshot(api: Api) -> set[tuple[str, str]]:
    """Returns the children except the ControllerRevision, whose name changes with every edit of the spec."""
    return {key for key in list_children(api) if key[0] != "ControllerRevision"}


def test_created_suspended(api: Api, operator: OperatorProcess) -> None:
    api.apply(build_pipeline(suspend=True))
    wait_condition(api, "Ready", status="False", reason="Suspended")
    assert api.list("Pod") == []
    api.patch("OmniPipeline", "omni", {"spec": {"suspend": False}})
    wait_settled(api)


def test_deleted_without_an_operator(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    with make_operator():
        api.apply(build_pipeline())
        wait_settled(api)
    assert "finalizers" not in api.get("OmniPipeline", "omni")["metadata"]
    api.delete("OmniPipeline", "omni")
    eventually(lambda: list_labelled(api) == [], why="the garbage collector deletes everything")
    assert api.find("OmniPipeline", "omni") is None


def test_recreated_under_the_same_name(api: Api, operator: OperatorProcess) -> None:
    first = api.create(build_pipeline())
    wait_settled(api)
    api.delete("OmniPipeline", "omni")
    # Created immediately, while children of the first pipeline still exist.
    second = api.create(build_pipeline())
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    wait_settled(api)
    assert_children_as_rendered(api)
    owners = [ref["uid"] for item in list_children(api).values() for ref in item["metadata"]["ownerReferences"]]
    assert set(owners) == {second["metadata"]["uid"]}


def test_a_new_operator_changes_nothing(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """An operator upgrade that keeps the stage image restarts no pod and writes nothing."""
    with make_operator() as old:
        api.apply(build_pipeline())
        wait_settled(api)
        wait_idle(old)
    pods = {pod["metadata"]["uid"] for pod in api.list("Pod")}
    children = written(api)
    with make_operator("--log-format", "text", "--workers", "2") as new:
        new.wait_reconciled()
        wait_idle(new)
        assert new.count_writes() == 0
    assert {pod["metadata"]["uid"] for pod in api.list("Pod")} == pods
    assert written(api) == children


def test_the_default_image_is_the_operators(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    manifest = build_pipeline()
    del manifest["spec"]["defaults"]
    with make_operator("--default-image", "example.com/a:1"):
        api.apply(manifest)
        wait_settled(api)
        first = revisions(api)
    with make_operator("--default-image", "example.com/a:2"):
        # A new default image rolls out blue/green, like an image in the spec.
        eventually(lambda: revisions(api) not in (first, set()) and len(revisions(api)) == 1, timeout_s=PATIENCE_S)
        wait_settled(api)
    images = {c["image"] for d in api.list("Deployment") for c in d["spec"]["template"]["spec"]["containers"]}
    assert images == {"example.com/a:2"}
    assert IMAGE not in images


def test_several_pipelines_and_a_shared_namespace(api: Api, operator: OperatorProcess) -> None:
    names = ["a", "b", "c"]
    for name in names:
        api.create(build_pipeline(name))
    for name in names:
        wait_settled(api, name)
    kept = {name: set(list_children(api, name)) for name in names}
    api.delete("OmniPipeline", "b")
    eventually(lambda: list_labelled(api, "b") == [])
    assert set(list_children(api, "a")) == kept["a"]
    assert set(list_children(api, "c")) == kept["c"]


def test_a_volume_claim_of_a_model(control_plane: ControlPlane, api: Api, operator: OperatorProcess) -> None:
    api.apply(build_pipeline(model={"uri": "pvc://models/tiny"}))
    wait_condition(api, "Ready", status="False", reason="VolumeNotBound", timeout_s=PATIENCE_S)
    control_plane.add_volume_claim(api.namespace, "models")
    wait_settled(api)
