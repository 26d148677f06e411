"""The decisions of one reconcile, in order: revision, rollout, desired children, plan.

    pipeline, observed, settings, time --> Decision

Pure functions, with caches for parsed specs and built manifests: a starting pipeline is reconciled about ten times, and
parsing and building cost ten times as much as the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from omni_kube.objects import Manifest
from omni_operator.desired import build_revision_set, build_shared
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.revision import compute_revision
from omni_operator.rollout.live_spec import read_snapshots
from omni_operator.rollout.plan import Plan, Verified, compute_plan
from omni_operator.rollout.rollout import Rollout, decide_rollout
from omni_operator.state.observed import Observed
from omni_proto.pipeline import OmniPipeline

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
    return Decision(pipeline, target, rollout, compute_plan(desired, observed, rollout.keep, verified))


def build_desired(
    pipelines: Mapping[str, OmniPipeline], rollout: Rollout, observed: Observed, settings: BuildSettings
) -> list[Manifest]:
    """Returns every child that must exist now: the shared ones, and for each revision those that the rollout needs."""
    owner = Owner(name=observed.name, namespace=observed.namespace, uid=observed.uid)
    desired = [*_build_shared(owner, rollout.serving, rollout.serving_tls)]
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
def _build_shared(owner: Owner, serving: str, tls: bool) -> tuple[Manifest, ...]:
    return tuple(build_shared(owner, serving, tls=tls))
