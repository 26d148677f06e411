"""The decisions of one reconcile, in order: the spec in force, revision, rollout, desired children, plan.

    pipeline, observed, settings, time --> Decision

Objects of the API server are read leniently. Fields that this operator does not know are ignored, because a newer CRD
adds them to every pipeline. A value that it does not understand makes the spec unusable; until that changes, the last
spec that it accepted is in force, so what serves is still healed. See docs/adr/0037-specs-of-another-version.md.

Pure functions, with caches for parsed specs and built manifests: a starting pipeline is reconciled about ten times, and
parsing and building cost ten times as much as the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision, latest_snapshots, read_snapshot, revision_of
from omni_operator.kinds import KIND_BY_NAME, ROUTE_KINDS
from omni_operator.rollout.plan import Plan, Verified, compute_plan
from omni_operator.rollout.policy import check_policy
from omni_operator.rollout.rollout import Rollout, decide_rollout
from omni_operator.state.live import live_balancer, live_serving_revision
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


def read_live_spec(observed: Observed, default_image: str, forbidden: tuple[str, ...] = ()) -> LiveSpec:
    """Returns the spec that is in force for a pipeline. forbidden: fields that no pipeline may set; see policy.py."""
    try:
        pipeline, ignored = _parse(observed.pipeline)
        check_policy(pipeline, forbidden, f"{observed.namespace}/{observed.name}")
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


REMEMBERED_SETS: Final = 64
"""Maximum number of entries in each cache. A built set takes about 200 KiB."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one reconcile decided."""

    pipeline: OmniPipeline
    target: str
    """Revision of the spec."""
    rollout: Rollout
    plan: Plan
    route: Plan
    """The writes of the route from outside the cluster. They may be refused without harm to what serves."""


def decide(
    pipeline: OmniPipeline,
    observed: Observed,
    settings: BuildSettings,
    now: datetime,
    verified: Verified | None = None,
    target: str = "",
) -> Decision:
    """Returns the decision whose plan moves the observed state one safe step towards the spec; see compute_plan.

    target: the revision of a pipeline that was read from a ControllerRevision. Default: computed from the pipeline.
    """
    target = target or _facts_of(_This(pipeline), settings.default_image).revision
    snapshots = read_snapshots(observed, target)
    rollout = decide_rollout(pipeline, target, snapshots, observed, now)
    desired = build_desired({**snapshots, target: pipeline}, rollout, observed, settings)
    return Decision(
        pipeline,
        target,
        rollout,
        plan=compute_plan(desired, observed, rollout.keep, verified, KIND_BY_NAME.keys() - ROUTE_KINDS.keys()),
        route=compute_plan(desired, observed, verified=verified, kinds=ROUTE_KINDS),
    )


def build_desired(
    pipelines: Mapping[str, OmniPipeline], rollout: Rollout, observed: Observed, settings: BuildSettings
) -> list[Manifest]:
    """Returns every child that must exist now: the shared ones, and for each revision those that the rollout needs."""
    owner = Owner(name=observed.name, namespace=observed.namespace, uid=observed.uid)
    spec, balancer = _This(pipelines[rollout.target]), live_balancer(observed)
    desired = [*_build_shared(owner, rollout.serving, rollout.serving_tls, spec, balancer)]
    for part in rollout.parts:
        key = _SetKey.of(pipelines[part.revision], part.revision, part.replicas, owner, settings)
        desired += [child for child in _build_set(key) if part.wants(child)]
    return desired


class _This:
    """Wraps a pipeline so that it is compared by identity, which is correct because it is frozen.

    To compare or hash its fields would cost as much as to compute its _Facts.
    """

    __slots__ = ("pipeline",)

    def __init__(self, pipeline: OmniPipeline) -> None:
        self.pipeline = pipeline

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other.pipeline is self.pipeline

    def __hash__(self) -> int:
        return id(self.pipeline)


class _Facts(NamedTuple):
    """What each reconcile derives from a spec."""

    revision: str
    spec: str
    """The resource as JSON, with only the fields that are set."""


@lru_cache(maxsize=REMEMBERED_SETS)
def _facts_of(this: _This, default_image: str) -> _Facts:
    # Includes fields that are set to their default, because the snapshot contains exactly the fields that are set.
    return _Facts(compute_revision(this.pipeline, default_image), this.pipeline.model_dump_json(exclude_unset=True))


@dataclass(frozen=True)
class _SetKey:
    """All inputs of a revision's set, compared by value and not by identity. Key of a cache."""

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
        spec = _facts_of(_This(pipeline), settings.default_image).spec
        return cls(spec, revision, tuple(sorted(replicas.items())), owner, settings, pipeline)


@lru_cache(maxsize=REMEMBERED_SETS)
def _build_set(key: _SetKey) -> tuple[Manifest, ...]:
    """Returns the children of a revision. Cached: most reconciles of a starting pipeline need the same set."""
    return tuple(build_revision_set(key.pipeline, key.revision, dict(key.replicas), key.owner, key.settings))


@lru_cache(maxsize=REMEMBERED_SETS)
def _build_shared(owner: Owner, serving: str, tls: bool, this: _This, balancer: str | None) -> tuple[Manifest, ...]:
    spec = this.pipeline.spec
    scaled = sorted(stage.name for stage in spec.stages if stage.scaling is not None)
    entry = spec.entry
    if balancer is not None and entry.service.type == "LoadBalancer":
        service = entry.service.model_copy(update={"load_balancer_class": balancer or None})
        entry = entry.model_copy(update={"service": service})
    return tuple(build_shared(owner, serving, tls=tls, entry=entry, scaled=scaled))
