"""Revisions: a hash of everything that two stages must agree on to communicate, and the snapshot of a revision's spec.

The hash covers the graph, and every stage's checkpoint (uri and revision), image, component, dtype, quantization and
outputs. It depends only on the resource and on the operator's default image. Pods call only pods of their own revision,
so incompatible stages never exchange a request. See docs/adr/kubernetes.md (0010).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from omni_kube.objects import Manifest, content_hash
from omni_operator.names import REVISION_LENGTH
from omni_proto.pipeline import API_VERSION, KIND, Model, OmniPipeline, Stage, type_live_document

DEFAULT_MODEL_REVISION: Final = "main"
_HF_SCHEME: Final = "hf://"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A revision as stored in its ControllerRevision."""

    revision: str
    pipeline: OmniPipeline
    """With the image of every stage set. Its generation is the pipeline's generation at the time of the snapshot."""


def image_of(pipeline: OmniPipeline, stage: Stage, default_image: str) -> str:
    """Returns the image of a stage: its own, else the pipeline's default, else the operator's default."""
    return stage.image or pipeline.spec.defaults.image or default_image


def compute_revision(pipeline: OmniPipeline, default_image: str) -> str:
    """Returns the pipeline's revision: 7 hexadecimal characters, equal for specs whose stages are compatible.

    The revision does not depend on the order of stages, nor on settings that may differ between stages that communicate
    (replicas, resources, limits, placement). It does depend on the outputs that a stage returns to the client, because
    the upstream stage relays them.
    """
    return content_hash(_contract(pipeline, default_image), REVISION_LENGTH)


def pin_images(pipeline: OmniPipeline, default_image: str) -> OmniPipeline:
    """Returns the pipeline with defaults.image set, so that it no longer depends on the operator's default image."""
    if pipeline.spec.defaults.image is not None:
        return pipeline
    defaults = pipeline.spec.defaults.model_copy(update={"image": default_image})
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"defaults": defaults})})


def dump_spec(pipeline: OmniPipeline) -> dict[str, Any]:
    """Returns the spec as JSON, with only the fields that were set: defaults may differ in later versions."""
    spec: dict[str, Any] = pipeline.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    return spec


def revision_of(controller_revision: Manifest, pipeline: str) -> str:
    """Returns the revision of a ControllerRevision of the pipeline, from its name, which is immutable."""
    name: str = controller_revision["metadata"]["name"]
    return name.removeprefix(f"{pipeline}-").partition("-")[0]


def read_snapshot(controller_revision: Manifest, pipeline: str) -> Snapshot:
    """Returns the snapshot in a ControllerRevision, without fields that this operator does not know.

    Raises PipelineError if it cannot be read.
    """
    metadata = controller_revision["metadata"]
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": pipeline,
            "namespace": metadata.get("namespace"),
            "generation": controller_revision["revision"],
        },
        "spec": (controller_revision.get("data") or {}).get("spec"),
    }
    parsed, _ = type_live_document(document, f"ControllerRevision {metadata['name']}")
    return Snapshot(revision_of(controller_revision, pipeline), parsed)


def latest_snapshots(controller_revisions: Iterable[Manifest], pipeline: str) -> dict[str, Manifest]:
    """Returns, by revision, the pipeline's ControllerRevision with the highest number.

    A revision may have two of them, because a new one is written before the old one is pruned.
    """
    ordered = sorted(controller_revisions, key=lambda item: (int(item["revision"]), item["metadata"]["name"]))
    return {revision_of(item, pipeline): item for item in ordered}


def _contract(pipeline: OmniPipeline, default_image: str) -> dict[str, Any]:
    models = {stage.name: _checkpoint(pipeline.model_of(stage)) for stage in pipeline.spec.stages}
    first, *others = models.values()
    # One checkpoint of all stages counts once, wherever the spec names it, so naming it elsewhere keeps the revision.
    is_shared = all(other == first for other in others)
    contract = {
        "model": first if is_shared else None,
        "stages": [
            _without_none(
                {
                    "name": stage.name,
                    "model": None if is_shared else models[stage.name],
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
    return _without_none(contract)


def _checkpoint(model: Model) -> dict[str, str]:
    # Only hf:// checkpoints have a revision.
    revision = (model.revision or DEFAULT_MODEL_REVISION) if model.uri.startswith(_HF_SCHEME) else ""
    return {"uri": model.uri, "revision": revision}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    # A field that a later version adds must not change the hash of specs that do not set it.
    return {key: value for key, value in values.items() if value is not None}
