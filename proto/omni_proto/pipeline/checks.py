"""Rules that hold between fields of an OmniPipeline, as pure functions that return problems.

Each message names the offender and the remedy. Rules on single fields (patterns, bounds) are in the types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omni_proto.pipeline.kubernetes import GPU_RESOURCE

if TYPE_CHECKING:
    from omni_proto.pipeline.resource import OmniPipeline, PodSettings, Stage

MAX_JOINED_NAME = 54
"""Most characters of PIPELINE-STAGE: a Service is named PIPELINE-STAGE-REVISION, in 63 of which REVISION takes 8."""
MAX_GPUS = 64
"""Most GPUs of one stage: the largest tensor parallel size."""
RESERVED_LABEL_DOMAINS = ("omnipipeline.io", "app.kubernetes.io", "kubernetes.io", "k8s.io")
"""Labels of these domains select pods or are Kubernetes' own."""
RESERVED_ANNOTATION_DOMAINS = ("omnipipeline.io", "kubernetes.io", "k8s.io")


@dataclass(frozen=True, slots=True)
class Problem:
    """One wrong field."""

    field: str
    """Path, e.g. spec.stages[1].inputs[0].from"""
    message: str
    """What is wrong and what to do."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class PipelineProblems(ValueError):
    """Carries problems through a pydantic validator."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def check_pipeline(pipeline: OmniPipeline) -> list[Problem]:
    """All problems of a pipeline whose single fields are valid, in the order of the file."""
    stages = pipeline.spec.stages
    problems = [*_check_model(pipeline), *_check_names(pipeline.metadata.name, stages), *_check_graph(stages)]
    problems += _check_outputs(stages)
    problems += _check_pod_settings("spec.defaults", pipeline.spec.defaults)
    for index, stage in enumerate(stages):
        problems += _check_gpus(f"spec.stages[{index}]", stage)
        problems += _check_pod_settings(f"spec.stages[{index}]", stage)
    rollout = pipeline.spec.rollout
    if _is_zero(rollout.max_surge) and _is_zero(rollout.max_unavailable):
        problems.append(
            Problem(
                "spec.rollout", "maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; raise one"
            )
        )
    return problems


def _check_model(pipeline: OmniPipeline) -> Iterator[Problem]:
    model = pipeline.spec.model
    if ".." in model.uri.split("://", 1)[1].split("/"):
        yield Problem("spec.model.uri", f"{model.uri} leaves its root with '..'; give the path without it")
    if model.uri.startswith("hf://"):
        return
    scheme = model.uri.split("://", 1)[0]
    settings = {"revision": model.revision, "tokenSecretRef": model.token_secret_ref, "cache": model.cache}
    for name, value in settings.items():
        if value is not None:
            yield Problem(f"spec.model.{name}", f"has no meaning with {scheme}://; remove it, or use an hf:// uri")


def _check_names(pipeline: str, stages: list[Stage]) -> Iterator[Problem]:
    counts = Counter(stage.name for stage in stages)
    for index, stage in enumerate(stages):
        path = f"spec.stages[{index}].name"
        joined = len(pipeline) + 1 + len(stage.name)
        if joined > MAX_JOINED_NAME:
            yield Problem(
                path,
                f"pipeline {pipeline!r} and stage {stage.name!r} make a name of {joined} characters, "
                f"at most {MAX_JOINED_NAME} fit a Service's name; shorten either",
            )
        if counts[stage.name] > 1 and stage.name in (earlier.name for earlier in stages[:index]):
            yield Problem(path, f"{stage.name!r} is used {counts[stage.name]} times; give each stage a name of its own")


def _check_graph(stages: list[Stage]) -> Iterator[Problem]:
    names = [stage.name for stage in stages]
    entries = [stage.name for stage in stages if not stage.inputs]
    if not entries:
        yield Problem(
            "spec.stages", "found 0 entry stages; remove the inputs of the one stage that reads the client's prompt"
        )
    if len(entries) > 1:
        yield Problem(
            "spec.stages",
            f"found {len(entries)} entry stages: {', '.join(entries)}; exactly one may have no inputs, "
            "add inputs: [{from: STAGE}] to the others",
        )
    for index, stage in enumerate(stages):
        for number, edge in enumerate(stage.inputs):
            if edge.source not in names:
                yield Problem(
                    f"spec.stages[{index}].inputs[{number}].from",
                    f"stage {stage.name!r} reads {edge.source!r}, which is not a stage of this pipeline "
                    f"(there are: {', '.join(names)})",
                )
    for cycle in find_cycles({stage.name: stage.inputs[0].source for stage in stages if stage.inputs}):
        path = " -> ".join([*cycle, cycle[0]])
        yield Problem("spec.stages", f"stages read one another in a circle: {path}; let one of them read another stage")


def find_cycles(upstream: Mapping[str, str]) -> list[list[str]]:
    """Cycles of a graph in which each node has at most one upstream, each in the direction of the data."""
    cycles: list[list[str]] = []
    seen: set[str] = set()
    for start in upstream:
        trail: list[str] = []
        node: str | None = start
        while node is not None and node not in seen:
            seen.add(node)
            trail.append(node)
            node = upstream.get(node)
        if node is not None and node in trail:
            cycles.append(list(reversed(trail[trail.index(node) :])))
    return cycles


def _check_outputs(stages: list[Stage]) -> Iterator[Problem]:
    read = {edge.source for stage in stages for edge in stage.inputs}
    for index, stage in enumerate(stages):
        path = f"spec.stages[{index}].outputs"
        if len(set(stage.outputs)) != len(stage.outputs):
            yield Problem(path, f"stage {stage.name!r} names an output twice; name each once")
        if not stage.outputs and stage.name not in read:
            yield Problem(
                path,
                f"stage {stage.name!r} returns nothing and no stage reads it; "
                "declare outputs: [Text] or [Audio], or remove the stage",
            )


def _check_gpus(path: str, stage: Stage) -> Iterator[Problem]:
    limit = stage.resources.limits.get(GPU_RESOURCE)
    request = stage.resources.requests.get(GPU_RESOURCE)
    if limit is not None and (not str(limit).isdigit() or not 1 <= int(limit) <= MAX_GPUS):
        yield Problem(
            f"{path}.resources.limits[{GPU_RESOURCE}]",
            f"stage {stage.name!r} asks for {limit} GPUs; give a whole number from 1 to {MAX_GPUS}, "
            "or leave it out to run on the CPU",
        )
    if request is not None and str(request) != str(limit):
        yield Problem(
            f"{path}.resources.requests[{GPU_RESOURCE}]",
            f"stage {stage.name!r} requests another number of GPUs than its limit; remove it, the limit is enough",
        )


def _check_pod_settings(path: str, settings: PodSettings) -> Iterator[Problem]:
    for field, keys, reserved in (
        ("podLabels", settings.pod_labels or {}, RESERVED_LABEL_DOMAINS),
        ("podAnnotations", settings.pod_annotations or {}, RESERVED_ANNOTATION_DOMAINS),
    ):
        for key in keys:
            domain = key.split("/", 1)[0] if "/" in key else ""
            if any(domain == name or domain.endswith(f".{name}") for name in reserved):
                yield Problem(f"{path}.{field}[{key}]", f"domain {domain} is reserved; use a domain of your own")
    for index, toleration in enumerate(settings.tolerations or []):
        where = f"{path}.tolerations[{index}]"
        if toleration.key is None and toleration.operator == "Equal":
            yield Problem(f"{where}.key", "is missing; name the taint's key, or use operator: Exists for every taint")
        if toleration.operator == "Exists" and toleration.value:
            yield Problem(f"{where}.value", "has no meaning with operator Exists; remove it")


def _is_zero(amount: int | str) -> bool:
    return str(amount).rstrip("%").lstrip("0") == ""
