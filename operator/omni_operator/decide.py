"""The decisions of one round in their order: revision, rollout, desired children, plan. Pure.

pipeline, observed, settings, time --> Decision
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.build_settings import BuildSettings, Owner
from omni_operator.desired import build_revision_set, build_shared
from omni_operator.live import controller_uid
from omni_operator.objects import Manifest
from omni_operator.observed import Observed
from omni_operator.plan import Plan, compute_plan
from omni_operator.revision import compute_revision, latest_snapshots, read_snapshot
from omni_operator.rollout import Rollout, decide_rollout
from omni_proto.pipeline import OmniPipeline, PipelineError, type_document


@dataclass(frozen=True, slots=True)
class Decision:
    """What one round found to be right."""

    pipeline: OmniPipeline
    target: str
    """Revision of the spec."""
    rollout: Rollout
    plan: Plan


def decide(pipeline: OmniPipeline, observed: Observed, settings: BuildSettings, now: datetime) -> Decision:
    """The writes that bring the observed state one safe step closer to the pipeline's spec."""
    target = compute_revision(pipeline, settings.default_image)
    snapshots = read_snapshots(observed, target)
    rollout = decide_rollout(pipeline, target, snapshots, observed, now)
    desired = build_desired({**snapshots, target: pipeline}, rollout, observed, settings)
    return Decision(pipeline, target, rollout, compute_plan(desired, observed, rollout.keep))


def build_desired(
    pipelines: Mapping[str, OmniPipeline], rollout: Rollout, observed: Observed, settings: BuildSettings
) -> list[Manifest]:
    """Every child that must exist now: what revisions share, and the parts of them that the rollout asks for."""
    owner = Owner(name=observed.name, namespace=observed.namespace, uid=observed.uid)
    desired = build_shared(owner, rollout.serving)
    for part in rollout.parts:
        built = build_revision_set(pipelines[part.revision], part.revision, owner, settings, replicas=part.replicas)
        desired += [child for child in built if part.wants(child)]
    return desired


def parse_live_pipeline(manifest: Manifest) -> OmniPipeline:
    """The typed form of a live OmniPipeline. Raises PipelineError: an older CRD let it in, or a newer one."""
    metadata = manifest["metadata"]
    document = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {key: metadata[key] for key in ("name", "namespace", "generation") if key in metadata},
        "spec": manifest.get("spec"),
    }
    return type_document(document, f"{metadata['namespace']}/{metadata['name']}")


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
