"""OmniPipelines for tests on a control plane, and functions that wait for their state and read their children."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from support.controlplane.server.api import Api, Manifest, eventually
from support.processes.polling import PATIENCE_S

IMAGE = "example.com/stage:1"
PIPELINE_LABEL = "omnipipeline.io/pipeline"
STAGE_LABEL = "omnipipeline.io/stage"
REVISION_LABEL = "omnipipeline.io/revision"
CHILD_KINDS = (
    "ServiceAccount",
    "ConfigMap",
    "ControllerRevision",
    "Service",
    "NetworkPolicy",
    "Deployment",
    "PodDisruptionBudget",
)
# What the API server and the controllers add to an object.
_SERVER_FIELDS = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink")
_SERVICE_FIELDS = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")


def build_stage(name: str, *, after: str | None = None, **fields: Any) -> Manifest:
    """Returns a stage of a spec. `after` names the stage that it reads from."""
    stage: Manifest = {"name": name, "component": f"qwen2_5_omni/{name}", **fields}
    if after:
        stage["inputs"] = [{"from": after}]
    return stage


def build_pipeline(name: str = "omni", *, stages: Sequence[Manifest] | None = None, **spec: Any) -> Manifest:
    """Returns an OmniPipeline of three stages (or `stages`) with a file:// model and its own image."""
    if stages is None:
        stages = [
            build_stage("thinker", outputs=["Text"]),
            build_stage("talker", after="thinker"),
            build_stage("token2wav", after="talker", outputs=["Audio"]),
        ]
    return {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": "file:///models/tiny"},
            "defaults": {"image": IMAGE},
            "stages": copy.deepcopy(list(stages)),
            **spec,
        },
    }


def build_two_stages(name: str = "omni", *, replicas: int = 2, **spec: Any) -> Manifest:
    """Returns a pipeline with fewer children than build_pipeline's that still has every kind of child.

    The first stage has a PodDisruptionBudget if it has two replicas or more.
    """
    stages = [
        build_stage("thinker", outputs=["Text"], replicas=replicas),
        build_stage("talker", after="thinker", outputs=["Audio"], component="acme/talker"),
    ]
    return build_pipeline(name, stages=stages, **spec)


def stage_of(pipeline: Manifest, name: str) -> Manifest:
    """Returns a stage of a manifest. The caller may change the stage in place."""
    return next(stage for stage in pipeline["spec"]["stages"] if stage["name"] == name)


def condition_of(manifest: Manifest, kind: str) -> Manifest:
    """Returns a live object's condition of a type; an empty mapping if there is none."""
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


def is_settled(pipeline: Manifest) -> bool:
    """Returns whether the pipeline is Ready and not Progressing, for its present generation."""
    generation = pipeline["metadata"]["generation"]
    ready, progressing = condition_of(pipeline, "Ready"), condition_of(pipeline, "Progressing")
    return (
        ready.get("status") == "True"
        and progressing.get("status") == "False"
        and ready.get("observedGeneration") == progressing.get("observedGeneration") == generation
    )


def wait_settled(api: Api, name: str = "omni", timeout_s: float = PATIENCE_S) -> Manifest:
    """Waits until `is_settled`. Returns the pipeline."""

    def settled() -> Manifest | None:
        pipeline = api.get("OmniPipeline", name)
        assert is_settled(pipeline), (pipeline["metadata"]["generation"], pipeline.get("status"))
        return pipeline

    try:
        return eventually(settled, timeout_s=timeout_s, why=f"{name} ready and not progressing") or {}
    except AssertionError as error:
        pods = [describe_pod(pod) for pod in api.list("Pod", labels=f"{PIPELINE_LABEL}={name}")]
        raise AssertionError("\n".join([str(error), f"{len(pods)} pods:", *pods])) from error


def wait_available(api: Api, count: int) -> None:
    """Waits until exactly `count` Deployments have all their replicas. Reads this from the API server directly."""

    def available() -> bool:
        deployments = api.list("Deployment")
        return count == sum(
            deployment.get("status", {}).get("availableReplicas", 0) == deployment["spec"]["replicas"]
            for deployment in deployments
        )

    eventually(available, why=f"{count} Deployments available")


def describe_pod(pod: Manifest) -> str:
    """Returns a line about a pod: its node, phase, address and the conditions that are not True."""
    metadata, status = pod["metadata"], pod.get("status", {})
    unmet = [
        f"{condition['type']} {condition['status']}: {condition.get('reason', '')} {condition.get('message', '')}"
        for condition in status.get("conditions", [])
        if condition["status"] != "True"
    ]
    gone = "deleted, " if "deletionTimestamp" in metadata else ""
    node = pod["spec"].get("nodeName", "no node")
    return f"  {metadata['name']}: {gone}{node}, {status.get('phase')}, {status.get('podIP', 'no address')}; {unmet}"


def wait_condition(
    api: Api, kind: str, name: str = "omni", *, timeout_s: float = PATIENCE_S, **wanted: str
) -> Manifest:
    """Waits until a condition of the present generation has the `wanted` fields. Returns the condition.

    Example: wait_condition(api, "Ready", status="False", reason="Suspended").
    """

    def as_wanted() -> Manifest | None:
        pipeline = api.get("OmniPipeline", name)
        condition = condition_of(pipeline, kind)
        assert condition.get("observedGeneration") == pipeline["metadata"]["generation"], condition
        assert {key: condition.get(key) for key in wanted} == wanted, condition
        return condition

    return eventually(as_wanted, timeout_s=timeout_s, why=f"{kind} {wanted}") or {}


def list_children(api: Api, name: str = "omni") -> dict[tuple[str, str], Manifest]:
    """Returns the live children by (kind, name), without those that are being deleted.

    A child is an object with an ownerReference to the pipeline, no matter which labels it has.
    """
    pipeline = api.find("OmniPipeline", name)
    uid = pipeline["metadata"]["uid"] if pipeline else None
    return {
        (kind, item["metadata"]["name"]): item
        for kind in CHILD_KINDS
        for item in api.list(kind)
        if uid in [owner["uid"] for owner in item["metadata"].get("ownerReferences", [])]
        and "deletionTimestamp" not in item["metadata"]
    }


def list_labelled(api: Api, name: str = "omni") -> list[tuple[str, str]]:
    """Returns (kind, name) of every object with the pipeline's label, including pods."""
    return [
        (kind, item["metadata"]["name"])
        for kind in (*CHILD_KINDS, "ReplicaSet", "Pod")
        for item in api.list(kind, labels=f"{PIPELINE_LABEL}={name}")
    ]


def snapshot(api: Api, name: str = "omni") -> dict[tuple[str, str], Manifest]:
    """Returns the children without the fields that differ between runs, so that equal results compare equal."""
    return {key: _without_server_fields(child) for key, child in list_children(api, name).items()}


def written(api: Api, name: str = "omni") -> dict[tuple[str, str], tuple[str, Manifest]]:
    """Returns uid and content of each child. Unlike the resource version, these change only with a write of the
    operator or a user, and not with a status that the cluster's controllers write at any time."""
    live = list_children(api, name)
    return {key: (child["metadata"]["uid"], _without_server_fields(child)) for key, child in live.items()}


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Returns the differences of two snapshots as readable lines; empty if the snapshots are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other}, key=str)
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{path}/{_join(key)}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, f"{path}/{index}")]
    return [] if one == other else [f"{path}: {one!r} -> {other!r}"[:500]]


def drift(written: Any, live: Any) -> list[str]:
    """Returns what a GitOps tool would report as changed: fields of `written` that the API server dropped, and values
    and orders that it changed. Fields that it added are none."""
    return differences(written, _among(written, live))


def _among(written: Any, live: Any) -> Any:
    if isinstance(written, dict) and isinstance(live, dict):
        return {key: _among(value, live[key]) for key, value in written.items() if key in live}
    if isinstance(written, list) and isinstance(live, list) and len(written) == len(live):
        return [_among(*pair) for pair in zip(written, live, strict=True)]
    return live


def _join(key: Any) -> str:
    return " ".join(key) if isinstance(key, tuple) else str(key)


def revisions(api: Api, name: str = "omni") -> set[str]:
    """Returns the revisions that have Deployments."""
    deployments = api.list("Deployment", labels=f"{PIPELINE_LABEL}={name}")
    return {deployment["metadata"]["labels"][REVISION_LABEL] for deployment in deployments}


def serving_revision(api: Api, name: str = "omni") -> str:
    """Returns the revision that the entry's Service selects."""
    selector: Mapping[str, str] = api.get("Service", name)["spec"]["selector"]
    return selector[REVISION_LABEL]


def _without_server_fields(child: Manifest) -> Manifest:
    child = copy.deepcopy(child)
    child.pop("status", None)
    metadata, spec = child["metadata"], child.get("spec", {})
    for field in _SERVER_FIELDS:
        metadata.pop(field, None)
    # The hash covers the owner's uid.
    for annotation in ("deployment.kubernetes.io/revision", "omnipipeline.io/desired-hash"):
        metadata.get("annotations", {}).pop(annotation, None)
    for owner in metadata.get("ownerReferences", []):
        owner["uid"] = "OWNER"
    if child["kind"] == "Service" and spec.get("clusterIP") != "None":
        for field in _SERVICE_FIELDS:
            spec.pop(field, None)
    if child["kind"] == "ControllerRevision":
        child["revision"] = 0
    return child
