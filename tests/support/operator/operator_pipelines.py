"""Pipelines and their children, for tests of the operator's pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import OmniPipeline, parse_pipeline
from omni_proto.pod_contract import STAGE_LABEL

OWNER = Owner(name="demo", namespace="models", uid="0b1c")
SETTINGS = BuildSettings(default_image="stage:1", pod_monitors=True)
GPU = {"limits": {"nvidia.com/gpu": 1}}

Spec = dict[str, Any]


def make_stages() -> list[Spec]:
    """Returns the stages thinker -> talker -> token2wav."""
    return [
        {"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]},
        {"name": "talker", "component": "qwen2_5_omni/talker", "inputs": [{"from": "thinker", "mode": "Stream"}]},
        {
            "name": "token2wav",
            "component": "qwen2_5_omni/token2wav",
            "inputs": [{"from": "talker", "mode": "Full"}],
            "outputs": ["Audio"],
        },
    ]


def make_pipeline(
    stages: Sequence[Spec] | None = None, *, name: str = OWNER.name, generation: int = 1, **spec: Any
) -> OmniPipeline:
    """Returns a valid pipeline with a file:// model and three stages. `spec` adds or replaces fields of its spec."""
    document = {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": name, "namespace": OWNER.namespace, "generation": generation},
        "spec": {"model": {"uri": "file:///models/tiny"}, "stages": list(stages or make_stages()), **spec},
    }
    return parse_pipeline(json.dumps(document))


def make_single(name: str = OWNER.name, **stage: Any) -> OmniPipeline:
    """Returns a pipeline with one stage `llm`. The argument `spec` has fields of the pipeline's spec."""
    spec = stage.pop("spec", {})
    return make_pipeline([{"name": "llm", "component": "generic/llm", "outputs": ["Text"], **stage}], name=name, **spec)


def build_set(
    pipeline: OmniPipeline, settings: BuildSettings = SETTINGS, replicas: Mapping[str, int] | None = None
) -> list[Manifest]:
    """Returns the children of the pipeline's revision. Default for `replicas`: those of a revision that is new."""
    owner = Owner(pipeline.metadata.name, OWNER.namespace, OWNER.uid)
    revision = compute_revision(pipeline, settings.default_image)
    return build_revision_set(pipeline, revision, replicas or first_replicas(pipeline), owner, settings)


def build_all(pipeline: OmniPipeline, settings: BuildSettings = SETTINGS) -> list[Manifest]:
    """Returns all children of a pipeline whose revision serves."""
    owner = Owner(pipeline.metadata.name, OWNER.namespace, OWNER.uid)
    revision = compute_revision(pipeline, settings.default_image)
    return [*build_shared(owner, revision, entry=pipeline.spec.entry), *build_set(pipeline, settings)]


def pick(children: Sequence[Manifest], kind: str, stage: str | None = None) -> Manifest:
    """Returns the only child of a kind, and of a stage if one is named. Raises LookupError unless there is just one."""
    found = [
        child
        for child in children
        if child["kind"] == kind
        and (stage is None or child["metadata"]["labels"].get("omnipipeline.io/stage") == stage)
    ]
    if len(found) != 1:
        raise LookupError(f"{len(found)} children of kind {kind}, stage {stage}")
    return found[0]


def pod_spec(children: Sequence[Manifest], stage: str = "llm") -> Manifest:
    """Returns the pod spec of a stage's Deployment."""
    spec: Manifest = pick(children, "Deployment", stage)["spec"]["template"]["spec"]
    return spec


def labels_of_pods(children: Sequence[Manifest]) -> dict[str, dict[str, str]]:
    """Returns the labels of each stage's pods: stage -> labels."""
    deployments = [child for child in children if child["kind"] == "Deployment"]
    labels = [child["spec"]["template"]["metadata"]["labels"] for child in deployments]
    return {found[STAGE_LABEL]: found for found in labels}
