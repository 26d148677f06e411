"""Reads the specs that decisions act on: the pipeline's own, and those of its revisions (ControllerRevisions).

Objects of the API server are read leniently. Fields that this operator does not know are ignored, because a newer CRD
adds them to every pipeline. A value that it does not understand makes the spec unusable; until that changes, the last
spec that it accepted is in force, so what serves is still healed. See docs/adr/0037-specs-of-another-version.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from omni_kube.objects import Manifest
from omni_operator.desired.revision import compute_revision, latest_snapshots, read_snapshot, revision_of
from omni_operator.state.live import live_serving_revision
from omni_operator.state.observed import Observed
from omni_operator.state.slim import SPEC_BYTES
from omni_proto.pipeline import OmniPipeline, PipelineError, type_live_document
from omni_proto.pipeline.read.load import spec_too_large
from omni_proto.pipeline.rules.component_checks import check_components

REMEMBERED_SPECS: Final = 64
"""Maximum number of specs in the cache."""


@dataclass(frozen=True, slots=True)
class LiveSpec:
    """The spec that is in force, and how it differs from the spec of the live pipeline."""

    pipeline: OmniPipeline | None
    """The live pipeline, or the last one that was accepted; None if neither can be read."""
    revision: str = ""
    """Its revision; empty without a pipeline."""
    ignored: tuple[str, ...] = ()
    """Paths of the live spec's fields that this operator does not know."""
    problem: str = ""
    """Why the live spec is not in force; empty if it is."""


def read_live_spec(observed: Observed, default_image: str) -> LiveSpec:
    """Returns the spec that is in force for a pipeline."""
    try:
        pipeline, ignored = _parse(observed.pipeline)
    except PipelineError as error:
        return _last_accepted(observed, str(error))
    return LiveSpec(pipeline, compute_revision(pipeline, default_image), ignored)


def parse_live_pipeline(manifest: Manifest) -> OmniPipeline:
    """Returns the typed form of a live OmniPipeline, after a check that its components support what the spec requests.

    Raises PipelineError if the spec is invalid: an older or newer CRD may have accepted it.
    """
    return _parse(manifest)[0]


def _parse(manifest: Manifest) -> tuple[OmniPipeline, tuple[str, ...]]:
    metadata = manifest["metadata"]
    spec, source = manifest.get("spec"), f"{metadata['namespace']}/{metadata['name']}"
    if isinstance(spec, dict) and SPEC_BYTES in spec:
        raise spec_too_large(spec[SPEC_BYTES], source)
    document = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {key: metadata[key] for key in ("name", "namespace", "generation") if key in metadata},
        "spec": spec,
    }
    return _type_checked(msgspec.json.encode(document), source)


@lru_cache(maxsize=REMEMBERED_SPECS)
def _type_checked(document: bytes, source: str) -> tuple[OmniPipeline, tuple[str, ...]]:
    """Returns the typed form of a JSON document, and its unknown fields. Cached: models are frozen, so reconciles can
    share one."""
    pipeline, ignored = type_live_document(msgspec.json.decode(document), source)
    if problems := check_components(pipeline):
        raise PipelineError(source, problems)
    return pipeline, ignored


def _last_accepted(observed: Observed, problem: str) -> LiveSpec:
    """Returns the spec in the newest ControllerRevision, else in that of the revision that serves."""
    serving = live_serving_revision(observed)
    snapshots = latest_snapshots(_snapshots_of(observed), observed.name)
    newest = max(
        snapshots.values(),
        # The number is the pipeline's generation. It is the same if only the operator's default image has changed.
        key=lambda item: (int(item["revision"]), revision_of(item, observed.name) == serving),
        default=None,
    )
    for item in (newest, snapshots.get(serving or "")):
        if item is None:
            continue
        try:
            snapshot = read_snapshot(item, observed.name)
        except PipelineError:
            continue
        return LiveSpec(snapshot.pipeline, snapshot.revision, problem=problem)
    return LiveSpec(None, problem=problem)


def read_snapshots(observed: Observed, target: str) -> dict[str, OmniPipeline]:
    """Returns the specs of revisions other than the target, by revision, from their ControllerRevisions.

    A revision whose spec cannot be read is omitted. The rollout then leaves its live children unchanged while it
    serves, and prunes them afterwards.
    """
    snapshots: dict[str, OmniPipeline] = {}
    for revision, child in latest_snapshots(_snapshots_of(observed), observed.name).items():
        if revision == target:
            continue
        try:
            snapshots[revision] = read_snapshot(child, observed.name).pipeline
        except PipelineError:
            continue
    return snapshots


def _snapshots_of(observed: Observed) -> list[Manifest]:
    # One without data is too large to be stored (state/slim.py), so the operator did not make it.
    return [
        child
        for key, child in observed.children.items()
        if key.kind == "ControllerRevision" and observed.owns(child) and "data" in child
    ]
