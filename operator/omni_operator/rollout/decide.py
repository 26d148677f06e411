"""The decisions of one reconcile in their order: revision, rollout, desired children, plan.

    pipeline, observed, settings, time --> Decision

Pure, but for remembering the sets that were built last: building one costs ten times the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from omni_kube.objects import Manifest, controller_uid
from omni_operator.desired import build_revision_set, build_shared
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.revision import compute_revision, latest_snapshots, read_snapshot
from omni_operator.rollout.plan import Plan, Verified, compute_plan
from omni_operator.rollout.rollout import Rollout, decide_rollout
from omni_operator.state.observed import Observed
from omni_operator.state.slim import SPEC_BYTES
from omni_proto.pipeline import OmniPipeline, PipelineError, type_document
from omni_proto.pipeline.read.load import spec_too_large
from omni_proto.pipeline.rules.component_checks import check_components

REMEMBERED_SETS: Final = 64
"""Built sets that are kept, some 200 KiB each."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one reconcile found to be right."""

    pipeline: OmniPipeline
    target: str
    """Revision of the spec."""
    rollout: Rollout
    plan: Plan


def decide(
    pipeline: OmniPipeline,
    observed: Observed,
    settings: BuildSettings,
    now: datetime,
    verified: Verified | None = None,
) -> Decision:
    """The writes that bring the observed state one safe step closer to the pipeline's spec; see compute_plan."""
    target = compute_revision(pipeline, settings.default_image)
    snapshots = read_snapshots(observed, target)
    rollout = decide_rollout(pipeline, target, snapshots, observed, now)
    desired = build_desired({**snapshots, target: pipeline}, rollout, observed, settings)
    return Decision(pipeline, target, rollout, compute_plan(desired, observed, rollout.keep, verified))


def build_desired(
    pipelines: Mapping[str, OmniPipeline], rollout: Rollout, observed: Observed, settings: BuildSettings
) -> list[Manifest]:
    """Every child that must exist now: what revisions share, and the parts of them that the rollout asks for."""
    owner = Owner(name=observed.name, namespace=observed.namespace, uid=observed.uid)
    desired = build_shared(owner, rollout.serving, tls=rollout.serving_tls)
    for part in rollout.parts:
        key = _SetKey.of(pipelines[part.revision], part.revision, part.replicas, owner, settings)
        desired += [child for child in _build_set(key) if part.wants(child)]
    return desired


@dataclass(frozen=True)
class _SetKey:
    """All that a revision's set is made from, with an equality that does not depend on objects being the same."""

    spec: str
    revision: str
    replicas: tuple[tuple[str, int], ...]
    owner: Owner
    settings: BuildSettings
    pipeline: OmniPipeline = field(compare=False)

    @classmethod
    def of(
        cls,
        pipeline: OmniPipeline,
        revision: str,
        replicas: Mapping[str, int],
        owner: Owner,
        settings: BuildSettings,
    ) -> _SetKey:
        # What was set counts, not only what it comes to: a snapshot leaves out what was not.
        spec = pipeline.model_dump_json(exclude_unset=True)
        return cls(spec, revision, tuple(sorted(replicas.items())), owner, settings, pipeline)


@lru_cache(maxsize=REMEMBERED_SETS)
def _build_set(key: _SetKey) -> tuple[Manifest, ...]:
    """Returns the children of a revision. Most reconciles of a pipeline that starts need the same set."""
    return tuple(build_revision_set(key.pipeline, key.revision, dict(key.replicas), key.owner, key.settings))


def parse_live_pipeline(manifest: Manifest) -> OmniPipeline:
    """Returns the typed form of a live OmniPipeline, whose components can do what it asks of them.

    Raises PipelineError: an older CRD let it in, or a newer one.
    """
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
    pipeline = type_document(document, source)
    if problems := check_components(pipeline):
        raise PipelineError(source, problems)
    return pipeline


def read_snapshots(observed: Observed, target: str) -> dict[str, OmniPipeline]:
    """Specs of revisions other than the target, by revision, as their ControllerRevisions keep them.

    One whose spec cannot be read is left out: the rollout then leaves the live children of that revision alone.
    """
    kept = [
        child
        for key, child in observed.children.items()
        if key.kind == "ControllerRevision" and controller_uid(child) == observed.uid
    ]
    snapshots: dict[str, OmniPipeline] = {}
    for revision, child in latest_snapshots(kept, observed.name).items():
        if revision == target:
            continue
        try:
            snapshots[revision] = read_snapshot(child, observed.name).pipeline
        except PipelineError:
            continue
    return snapshots
