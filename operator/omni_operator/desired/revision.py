"""Revisions: what two stages must agree on to talk, as a hash; and the snapshot that keeps a revision's spec.

compat = hash(image, model uri and revision, graph, every stage's component, dtype, quantization), from the resource
alone. Pods of one revision call pods of that revision only, so a chain never mixes contracts. See docs/adr.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from omni_kube.objects import Manifest, content_hash
from omni_operator.names import REVISION_LENGTH
from omni_proto.pipeline import API_VERSION, KIND, OmniPipeline, Stage, type_document

DEFAULT_MODEL_REVISION: Final = "main"
_HF_SCHEME: Final = "hf://"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A revision as its ControllerRevision keeps it."""

    revision: str
    pipeline: OmniPipeline
    """With the image of every stage filled in; its generation is the one that was snapshot."""


def image_of(pipeline: OmniPipeline, stage: Stage, default_image: str) -> str:
    """Image of a stage: its own, else the pipeline's, else the operator's."""
    return stage.image or pipeline.spec.defaults.image or default_image


def model_revision_of(pipeline: OmniPipeline) -> str:
    """Revision of an hf:// checkpoint that is asked for; "" for other schemes, which have none."""
    model = pipeline.spec.model
    return (model.revision or DEFAULT_MODEL_REVISION) if model.uri.startswith(_HF_SCHEME) else ""


def compute_revision(pipeline: OmniPipeline, default_image: str) -> str:
    """The pipeline's revision: 7 hexadecimal characters, equal for specs whose stages can talk to one another.

    The order of stages, and everything that one pod can have otherwise than its neighbours (replicas, resources,
    limits, placement), does not count. What a stage returns to the client does: its upstream answers for it.
    """
    return content_hash(_contract(pipeline, default_image), REVISION_LENGTH)


def pin_images(pipeline: OmniPipeline, default_image: str) -> OmniPipeline:
    """The same pipeline with defaults.image set, so that another default image of the operator does not change it."""
    if pipeline.spec.defaults.image is not None:
        return pipeline
    defaults = pipeline.spec.defaults.model_copy(update={"image": default_image})
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"defaults": defaults})})


def dump_spec(pipeline: OmniPipeline) -> dict[str, Any]:
    """The spec as JSON: what was set, defaults of later versions left out."""
    spec: dict[str, Any] = pipeline.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return spec


def revision_of(controller_revision: Manifest, pipeline: str) -> str:
    """The revision that a ControllerRevision of the pipeline keeps: by its name, which nobody can change."""
    name: str = controller_revision["metadata"]["name"]
    return name.removeprefix(f"{pipeline}-").partition("-")[0]


def read_snapshot(controller_revision: Manifest, pipeline: str) -> Snapshot:
    """The snapshot in a ControllerRevision of the pipeline. Raises PipelineError if its spec is no longer valid."""
    metadata = controller_revision["metadata"]
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": pipeline,
            "namespace": metadata.get("namespace"),
            "generation": controller_revision["revision"],
        },
        "spec": controller_revision["data"]["spec"],
    }
    parsed = type_document(document, f"ControllerRevision {metadata['name']}")
    return Snapshot(revision_of(controller_revision, pipeline), parsed)


def latest_snapshots(controller_revisions: Iterable[Manifest], pipeline: str) -> dict[str, Manifest]:
    """By revision, the pipeline's ControllerRevision with the highest number.

    There may be two: one is written before the one that it replaces is pruned.
    """
    ordered = sorted(controller_revisions, key=lambda item: (int(item["revision"]), item["metadata"]["name"]))
    return {revision_of(item, pipeline): item for item in ordered}


def _contract(pipeline: OmniPipeline, default_image: str) -> dict[str, Any]:
    return {
        "model": _without_none({"uri": pipeline.spec.model.uri, "revision": model_revision_of(pipeline)}),
        "stages": [
            _without_none(
                {
                    "name": stage.name,
                    "image": image_of(pipeline, stage, default_image),
                    "component": stage.component,
                    "dtype": stage.engine_args.dtype,
                    "quantization": stage.engine_args.quantization,
                    "inputs": [[edge.source, edge.mode.value] for edge in stage.inputs],
                    "outputs": sorted(output.value for output in stage.outputs),
                }
            )
            for stage in sorted(pipeline.spec.stages, key=lambda stage: stage.name)
        ],
    }


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    # A field that is added later hashes as before where it is not set.
    return {key: value for key, value in values.items() if value is not None}
