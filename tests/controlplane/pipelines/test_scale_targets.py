"""OmniStages: kubectl scale and the real HPA controller set a stage's pods, and nothing undoes it."""

from __future__ import annotations

import json

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import (
    REVISION_LABEL,
    build_two_stages,
    condition_of,
    serving_revision,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

NAME = "omni"


def scaled(**scaling: object) -> Manifest:
    """Returns a pipeline whose second stage has scaling."""
    pipeline = build_two_stages(NAME, replicas=1)
    last = pipeline["spec"]["stages"][-1]
    last.pop("replicas", None)
    last["scaling"] = scaling
    return pipeline


def stage_of(pipeline: Manifest) -> str:
    """Returns the name of the stage with scaling."""
    return str(pipeline["spec"]["stages"][-1]["name"])


def pods_wanted(api: Api, stage: str, revision: str | None = None) -> int:
    """Returns the replicas in the Deployment of a stage of a revision."""
    name = f"{NAME}-{stage}-{revision or serving_revision(api)}"
    return int(api.get("Deployment", name)["spec"]["replicas"])


def test_kubectl_scale_and_a_rollout(control_plane: ControlPlane, api: Api, operator: OperatorProcess) -> None:
    """A number from outside holds: through a restart, an update in place and a new revision, until it is changed."""
    pipeline = scaled(by="External")
    stage = stage_of(pipeline)
    target = f"{NAME}-{stage}"
    api.apply(pipeline)
    wait_settled(api)
    assert api.get("OmniStage", target)["spec"] == {"replicas": 1}

    def scale(number: int) -> None:
        said = control_plane.kubectl(
            "scale", f"omnistage/{target}", f"--replicas={number}", namespace=api.namespace, check=True
        )
        assert "scaled" in said.stdout
        eventually(lambda: pods_wanted(api, stage) == number, timeout_s=PATIENCE_S)

    scale(3)
    wait_settled(api)
    status = eventually(lambda: api.get("OmniStage", target)["status"], timeout_s=PATIENCE_S)
    eventually(lambda: api.get("OmniStage", target)["status"]["readyReplicas"] == 3, timeout_s=PATIENCE_S)
    selector = json.loads(
        control_plane.kubectl("get", "pods", "-l", status["selector"], "-o", "json", namespace=api.namespace).stdout
    )
    assert len(selector["items"]) == 3

    old = serving_revision(api)
    sizes: set[int] = set()
    pipeline["spec"]["defaults"]["image"] = "example.com/stage:2"
    api.apply(pipeline)

    def switched() -> bool:
        for deployment in api.list("Deployment", labels=f"omnipipeline.io/stage={stage}"):
            if deployment["metadata"]["labels"][REVISION_LABEL] != old:
                sizes.add(int(deployment["spec"]["replicas"]))
        return serving_revision(api) != old

    eventually(switched, timeout_s=PATIENCE_S)
    wait_settled(api)
    assert sizes == {3}, "the new set starts at the size of the old one"
    assert api.get("OmniStage", target)["spec"] == {"replicas": 3}
    scale(2)


def test_the_hpa_controller_scales_a_stage(api: Api, operator: OperatorProcess) -> None:
    """Kubernetes' own HorizontalPodAutoscaler controller drives a stage through its OmniStage."""
    pipeline = scaled(by="External")
    stage = stage_of(pipeline)
    api.apply(pipeline)
    wait_settled(api)
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "hpa"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "omnipipeline.io/v1alpha1",
                "kind": "OmniStage",
                "name": f"{NAME}-{stage}",
            },
            "minReplicas": 3,
            "maxReplicas": 5,
        },
    }
    api.apply(hpa)
    eventually(lambda: pods_wanted(api, stage) == 3, timeout_s=PATIENCE_S, why="the controller enforces minReplicas")
    wait_settled(api)
    eventually(lambda: condition_of(api.get("HorizontalPodAutoscaler", "hpa"), "AbleToScale")["status"] == "True")


def test_from_fixed_replicas_to_scaling_and_back(api: Api, operator: OperatorProcess) -> None:
    """A stage keeps its pods when scaling takes over from replicas, and its OmniStage goes when it ends."""
    pipeline = scaled(minReplicas=1, maxReplicas=4)
    stage = stage_of(pipeline)
    fixed = {**pipeline, "spec": {**pipeline["spec"], "stages": [*pipeline["spec"]["stages"]]}}
    fixed["spec"]["stages"][-1] = {
        key: value for key, value in pipeline["spec"]["stages"][-1].items() if key != "scaling"
    }
    fixed["spec"]["stages"][-1]["replicas"] = 3
    api.apply(fixed)
    wait_settled(api)
    assert api.find("OmniStage", f"{NAME}-{stage}") is None

    api.apply(pipeline)
    eventually(lambda: api.find("OmniStage", f"{NAME}-{stage}") is not None, timeout_s=PATIENCE_S)
    eventually(lambda: api.get("OmniStage", f"{NAME}-{stage}").get("spec") == {"replicas": 3}, timeout_s=PATIENCE_S)
    assert pods_wanted(api, stage) == 3

    api.patch("OmniStage", f"{NAME}-{stage}", {"spec": {"replicas": 9}})
    eventually(lambda: pods_wanted(api, stage) == 4, timeout_s=PATIENCE_S, why="within the bounds")
    api.apply(fixed)
    eventually(lambda: api.find("OmniStage", f"{NAME}-{stage}") is None, timeout_s=PATIENCE_S)
    assert pods_wanted(api, stage) == 3
