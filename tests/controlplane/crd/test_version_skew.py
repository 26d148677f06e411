"""A CRD that is newer or older than the operator: what serves is healed, and the status says what is not understood."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    STAGE_LABEL,
    build_pipeline,
    build_two_stages,
    condition_of,
    list_children,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, ApiError, Manifest, eventually, path_of
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

CRD = "omnipipelines.omnipipeline.io"
Properties = dict[str, Any]
Edit = Callable[..., None]


@pytest.fixture
def edit_crd(control_plane: ControlPlane) -> Iterator[Edit]:
    """Yields edit_crd(of_spec, of_status, rules=True), which changes these properties in the CRD, drops its rules
    without `rules`, and waits until the API server uses it. The CRD is restored at the end."""
    admin = control_plane.admin
    original = admin.get("CustomResourceDefinition", CRD)["spec"]
    numbers = itertools.count()

    def write(spec: Manifest) -> None:
        admin.patch("CustomResourceDefinition", CRD, [{"op": "replace", "path": "/spec", "value": spec}])
        # A schema is in force some time after it is written. Its columns come with it.
        names = [one["name"] for one in spec["versions"][0]["additionalPrinterColumns"]]
        eventually(lambda: columns()[1:] == names, why="the CRD is in force")

    def columns() -> list[str]:
        table = admin.call("GET", path_of("OmniPipeline"), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
        return [one["name"] for one in table["columnDefinitions"]]

    def edit(*changes: Callable[[Properties], None], rules: bool = True) -> None:
        spec = copy.deepcopy(original)
        parts = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if not rules:
            drop_rules(spec["versions"][0]["schema"])
        for change, part in zip(changes, ("spec", "status"), strict=False):
            change(parts[part]["properties"])
        column = {"name": f"Edit {next(numbers)}", "type": "string", "jsonPath": ".metadata.name"}
        spec["versions"][0]["additionalPrinterColumns"].append(column)
        write(spec)

    yield edit
    write(original)


def add_defaulted_fields(spec: Properties) -> None:
    """Adds fields of a later version to the spec, to each stage, and to objects below it, all with defaults."""
    scaling = {"properties": {"minimum": {"type": "integer", "default": 1}}}
    spec["scaling"] = {"type": "object", "default": {}, **scaling}
    spec["rollout"]["properties"]["pauseSeconds"] = {"type": "integer", "default": 5}
    stage = spec["stages"]["items"]["properties"]
    stage["adapters"] = {"type": "array", "items": {"type": "string"}, "default": []}
    stage["engineArgs"]["properties"]["speculation"] = {"type": "string", "default": "None", "enum": ["None", "Draft"]}


def add_canary(spec: Properties) -> None:
    spec["rollout"]["properties"]["strategy"]["enum"].append("Canary")


def names_fields(api: Api, name: str = "omni") -> str:
    """Returns the message of SpecUnderstood. Raises AssertionError if the condition is not there."""
    condition = condition_of(api.get("OmniPipeline", name), "SpecUnderstood")
    assert condition, "no SpecUnderstood"
    return str(condition["message"])


def test_a_newer_crd_never_stops_healing(
    edit_crd: Edit, api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    stages = build_two_stages()["spec"]["stages"]
    stages[0]["engineArgs"] = {"maxModelLen": 4096}
    with make_operator() as operator:
        api.apply(build_pipeline(stages=stages))
        before = wait_settled(api)
        edit_crd(add_defaulted_fields)
        said = eventually(lambda: names_fields(api), timeout_s=PATIENCE_S, why="the new fields are named")
        for field in ("spec.scaling", "spec.rollout.pauseSeconds", "spec.stages[0].adapters"):
            assert field in said, said
        assert "spec.stages[0].engineArgs.speculation" in said
        live = wait_settled(api)
        assert live["metadata"]["generation"] == before["metadata"]["generation"]
        assert condition_of(live, "Ready") == condition_of(before, "Ready")
        assert condition_of(live, "Degraded")["status"] == "False"
        heals(api)
        # A new pipeline, and one with a value in the new fields.
        manifest = build_pipeline("later", stages=stages, scaling={"minimum": 2})
        api.apply(manifest)
        wait_settled(api, "later")
        assert "spec.scaling" in names_fields(api, "later")
        api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 60}}})
        wait_settled(api)
        wait_idle(operator)
    with make_operator():
        heals(api)
        wait_settled(api)
        edit_crd(lambda spec: None)
        eventually(lambda: not condition_of(api.get("OmniPipeline", "omni"), "SpecUnderstood"), timeout_s=PATIENCE_S)
        wait_settled(api)


def heals(api: Api) -> None:
    """Checks that the operator makes a deleted Service and a deleted Deployment again."""
    api.delete("Service", "omni")
    (deployment,) = api.list("Deployment", labels=f"{STAGE_LABEL}=talker,omnipipeline.io/pipeline=omni")
    api.delete("Deployment", deployment["metadata"]["name"])
    eventually(lambda: api.find("Service", "omni"), timeout_s=PATIENCE_S, why="the Service is back")
    name, uid = deployment["metadata"]["name"], deployment["metadata"]["uid"]
    eventually(
        lambda: api.get("Deployment", name)["metadata"]["uid"] != uid, timeout_s=PATIENCE_S, why="the Deployment too"
    )
    eventually(lambda: condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True", timeout_s=PATIENCE_S)


def test_a_value_that_is_not_understood_keeps_what_serves(edit_crd: Edit, api: Api, operator: OperatorProcess) -> None:
    api.apply(build_two_stages())
    before = wait_settled(api)
    children = list_children(api)
    edit_crd(add_canary)
    canary = {"spec": {"rollout": {"strategy": "Canary"}, "timeouts": {"request": 60}}}
    eventually(lambda: api.patch("OmniPipeline", "omni", canary), why="the API server accepts the new value")
    ready = wait_condition(api, "Ready", status="True", reason="AllStagesReady")
    assert ready["lastTransitionTime"] == condition_of(before, "Ready")["lastTransitionTime"]
    for kind, status in (("Progressing", "False"), ("Degraded", "True"), ("SpecUnderstood", "False")):
        found = wait_condition(api, kind, status=status, reason="InvalidSpec")
        assert "spec.rollout.strategy" in found["message"]
    heals(api)
    wait_idle(operator)
    assert set(list_children(api)) == set(children), "nothing else was changed"
    # A stage that is really down is not hidden by the spec.
    snapshots = [key for key in list_children(api) if key[0] == "ControllerRevision"]
    for _, name in snapshots:
        api.delete("ControllerRevision", name)
    (deployment,) = api.list("Deployment", labels=f"{STAGE_LABEL}=talker")
    api.delete("Deployment", deployment["metadata"]["name"])
    down = wait_condition(api, "Ready", status="False", reason="InvalidSpec")
    assert "talker" in down["message"]
    # Back to what the operator knows.
    api.patch("OmniPipeline", "omni", {"spec": {"rollout": {"strategy": "BlueGreen"}, "timeouts": {"request": 300}}})
    after = wait_settled(api)
    assert condition_of(after, "Degraded")["status"] == "False"
    assert not condition_of(after, "SpecUnderstood")
    assert set(list_children(api)) == set(children)


def test_wider_bounds_other_types_and_required_fields(edit_crd: Edit, api: Api, operator: OperatorProcess) -> None:
    api.apply(build_two_stages())
    wait_settled(api)

    def change(spec: Properties) -> None:
        stage = spec["stages"]["items"]["properties"]
        stage["replicas"]["maximum"] = 5000
        spec["suspend"] = {"x-kubernetes-int-or-string": True}
        spec["owner"] = {"type": "string"}
        spec["model"]["required"] = [*spec["model"].get("required", ()), "digest"]
        spec["model"]["properties"]["digest"] = {"type": "string"}

    edit_crd(change)
    heals(api)
    for edit in ({"suspend": "OnFriday"}, {"owner": "team", "suspend": None}):
        eventually(
            lambda edit=edit: api.patch("OmniPipeline", "omni", {"spec": {**edit, "model": {"digest": "d"}}}),  # type: ignore[misc]
            why="the new schema is in force",
        )
        wait_condition(api, "Ready", status="True")
        heals(api)
    assert "spec.model.digest" in names_fields(api)
    assert "spec.owner" in names_fields(api)


def test_an_older_crd_drops_fields_and_the_operator_keeps_working(
    edit_crd: Edit, api: Api, operator: OperatorProcess
) -> None:
    api.apply(build_two_stages(tracing={"otlpEndpoint": "http://collector:4317"}))
    wait_settled(api)

    def change(spec: Properties) -> None:
        for name in ("suspend", "tracing"):
            del spec[name]

    edit_crd(change)
    eventually(lambda: "tracing" not in api.get("OmniPipeline", "omni")["spec"], why="the field is dropped")
    heals(api)
    api.create(build_pipeline("other", suspend=True))
    assert "suspend" not in api.get("OmniPipeline", "other")["spec"]
    wait_settled(api, "other")
    with pytest.raises(ApiError):
        api.apply(build_pipeline("strict", suspend=True), strict=True)


def drop_scaling(spec: Properties) -> None:
    """Removes what the first CRDs did not have."""
    del spec["objectives"]
    stage = spec["stages"]["items"]["properties"]
    del stage["scaling"]
    stage["replicas"]["default"] = 1


def drop_newer_status(status: Properties) -> None:
    del status["names"]
    stage = status["stages"]["items"]["properties"]
    # Every stage has an endpoint in its status, so one of the fields is always written.
    for name in ("model", "scaling", "desiredReplicas", "endpoint"):
        del stage[name]


def drop_rules(schema: Properties) -> None:
    schema.pop("x-kubernetes-validations", None)
    for part in schema.values():
        if isinstance(part, dict):
            drop_rules(part)


@pytest.mark.parametrize("keeps_spec", [False, True], ids=["the spec lacks scaling too", "the spec has scaling"])
def test_a_status_with_fields_that_the_crd_lacks_is_written_without_them(
    keeps_spec: bool, edit_crd: Edit, api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    """A scaled stage has more in its status than the first CRDs took."""
    stages = build_two_stages()["spec"]["stages"]
    stages[1] = {**stages[1], "scaling": {"minReplicas": 1, "maxReplicas": 3}}
    stages[1].pop("replicas", None)
    with make_operator() as operator:
        api.apply(build_pipeline(stages=stages))
        wait_settled(api)
        edit_crd((lambda spec: None) if keeps_spec else drop_scaling, drop_newer_status, rules=keeps_spec)
        eventually(lambda: "names" not in api.get("OmniPipeline", "omni")["status"], why="the older CRD is in force")
        heals(api)
        api.patch("OmniPipeline", "omni", {"spec": {"timeouts": {"request": 60}}})
        wait_settled(api)
        api.create(build_pipeline("other", stages=stages))
        wait_settled(api, "other")
        assert api.find("OmniStage", "omni-talker") is not None or not keeps_spec
        wait_idle(operator)
    with make_operator() as operator:
        heals(api)
        wait_settled(api)
        wait_idle(operator)
    edit_crd()
    with make_operator():
        eventually(lambda: api.get("OmniPipeline", "omni")["status"].get("names"), timeout_s=PATIENCE_S)
        wait_settled(api)
