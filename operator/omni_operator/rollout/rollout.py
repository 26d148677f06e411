"""Decides in every reconcile how a pipeline moves from the serving revision to the requested one (the target).

A revision is a complete set of stages that call only one another. All inputs of a decision are in the API: which sets
exist, and which of them the entry Service selects. So a restarted operator decides as the previous one would have.

    build     build the target's set while the old set serves (BlueGreen), or after the old set has ended (Recreate)
    switch    the entry Service selects the target once every stage of it is available, or immediately if no other set
              is to keep serving (Recreate, a suspended pipeline, an old set that failed)
    retire    a set that neither serves nor is the target is scaled down from the entry stage downstream. A stage is
              scaled to zero once its upstream stage has no pods: until then, requests in flight need it. When no pod
              is left, the set is pruned.

docs/adr/kubernetes.md (0012) has a table of the cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from omni_kube.objects import Manifest, is_terminating, parse_time
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.replicas import (
    Fate,
    Replicas,
    ask_replicas,
    decide_replicas,
    fate_of,
    is_asleep,
    read_held,
)
from omni_operator.state.live import LOST_POD_SLACK, LiveSet, compute_live_sets, live_serving_revision
from omni_operator.state.observed import Observed, is_reachable
from omni_operator.state.pod_causes import find_cause, lacks_capacity, lost_capacity_at, needs_correction, next_check
from omni_proto.pipeline import OmniPipeline, describe_model, order_stages
from omni_proto.pod_contract import REVISION_LABEL, STAGE_LABEL

_POD_BEARING: Final = frozenset({"Deployment", "PodDisruptionBudget"})


class Phase(StrEnum):
    """The phase of a rollout."""

    COMPLETE = "Complete"
    """Only the target's set exists, and all of it is available."""
    INCOMPLETE = "Incomplete"
    """Only the target's set exists, with current pods, but not all of them are available."""
    STARTING = "Starting"
    """The target's set starts, and no other set serves meanwhile."""
    UPDATING = "Updating"
    """Pods of the target's set are replaced in place by pods of the same revision."""
    ROLLING_OUT = "RollingOut"
    """The target's set starts while another one serves."""
    NEEDS_CAPACITY = "NeedsCapacity"
    """The target's set cannot start beside the one that serves: the cluster lacks the capacity for both."""
    WAITING = "Waiting"
    """Recreate: the target's set starts after the old one has ended."""
    DRAINING = "Draining"
    """The target serves; an old set completes its requests."""
    SUSPENDING = "Suspending"
    """Pods end, and none will start."""
    SUSPENDED = "Suspended"
    """No pod runs, as requested."""


@dataclass(frozen=True, slots=True)
class RevisionPart:
    """A revision whose children must exist now."""

    revision: str
    replicas: Mapping[str, int]
    """Replicas that the Deployment of each stage must have now."""
    stages: frozenset[str] | None = None
    """Stages whose Deployment and PodDisruptionBudget must exist; None: all."""

    def wants(self, manifest: Manifest) -> bool:
        """Returns whether a child that was built for the revision must exist now."""
        stage = manifest["metadata"]["labels"].get(STAGE_LABEL)
        return self.stages is None or stage in self.stages or manifest["kind"] not in _POD_BEARING


@dataclass(frozen=True, slots=True)
class Rollout:
    """The decision on what must exist now and what serves."""

    target: str
    """The revision of the spec."""
    serving: str
    """The revision that the stable Services must select."""
    parts: tuple[RevisionPart, ...]
    """The sets that must exist: the serving set, the target's set unless it must wait, and retiring sets."""
    phase: Phase
    goals: Mapping[str, Mapping[str, int]]
    """Final replicas by revision and stage, of every revision that exists or must exist."""
    sets: Mapping[str, LiveSet]
    """The revisions that exist: the input of this decision."""
    selected: str | None = None
    """The revision that the live entry Service selects. It differs from `serving` until the switch is written."""
    keep: frozenset[ChildKey] = frozenset()
    """Live children to leave unchanged: they belong to a serving revision whose spec is lost, so they cannot be built.
    """
    waiting_for: tuple[str, ...] = ()
    """Stages that the phase waits for, as `STAGE (REVISION)`: to become available, or to end."""
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Checkpoints by revision and stage, of the stages that have one of their own: URI or URI@REVISION."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """Number of pods that each stage of the spec shall have while the pipeline is not suspended."""
    asleep: bool = False
    """Whether the pipeline sleeps, because nobody uses it."""
    serving_tls: bool = False
    """Whether clients reach the serving revision over TLS."""
    recheck_at: datetime | None = None
    """When to reconcile again even without an event, because a pod may then count as lost or stuck."""


def decide_rollout(
    pipeline: OmniPipeline, target: str, snapshots: Mapping[str, OmniPipeline], observed: Observed, now: datetime
) -> Rollout:
    """Returns what must exist now, so that the pipeline moves one safe step towards its target.

    pipeline is the current spec, and target its revision. snapshots has the specs of other revisions, from their
    ControllerRevisions (a snapshot of the target is ignored).
    """
    sets, selected = compute_live_sets(observed, now), live_serving_revision(observed)
    held = read_held(pipeline, observed, sets.get(selected or ""))
    view = RolloutView({**snapshots, target: pipeline}, target, observed, sets, selected, now, held)
    serving = _choose_serving(view)
    waits = _target_waits(view)
    parts = [] if waits else [RevisionPart(target, view.replicas(target, fate_of(pipeline)).now)]
    keep: set[ChildKey] = set()
    for revision in view.others:
        if revision not in view.pipelines:
            keep |= _children_of(view, revision) if revision in (serving, view.selected) else set()
        elif revision == serving or (revision == view.selected and view.can_serve(revision)):
            # The set that served is scaled down only after the API shows the switch.
            parts.append(RevisionPart(revision, view.replicas(revision, Fate.RUN).now))
        elif not view.is_empty(revision):
            ending = view.replicas(revision, Fate.RETIRE).now
            parts.append(RevisionPart(revision, ending, stages=frozenset(view.live(revision).stages)))
    phase = _phase(view, serving, waits)
    return Rollout(
        target=target,
        serving=serving,
        parts=tuple(parts),
        phase=phase,
        goals={revision: view.wanted(revision) for revision in (serving, target, *sets)},
        sets=sets,
        selected=view.selected,
        keep=frozenset(keep),
        waiting_for=_waiting_for(view, phase),
        models={revision: _own_models(spec) for revision, spec in view.pipelines.items()},
        # If the serving revision's spec is lost, assume the TLS setting of the current spec.
        serving_tls=view.pipelines.get(serving, pipeline).spec.entry.tls is not None,
        recheck_at=_recheck_at(view),
        asked=ask_replicas(pipeline, held),
        asleep=is_asleep(pipeline, held),
    )


def _choose_serving(view: RolloutView) -> str:
    pipeline, target, selected = view.pipeline, view.target, view.selected
    if pipeline.spec.suspend or pipeline.spec.rollout.strategy == "Recreate" or view.is_available(target):
        return target
    if selected == target and view.can_serve(target):
        return target
    if selected is not None and selected in view.others and _is_worth_keeping(view, selected):
        return selected
    # The selected set does not serve or no longer exists. Another one may serve: the selector was edited by hand, or
    # the target failed before the old set was scaled down.
    return next((revision for revision in reversed(view.others) if view.is_available(revision)), target)


def _is_worth_keeping(view: RolloutView, revision: str) -> bool:
    """Returns whether a selected set that is not the target should keep serving until the target can serve.

    It should not if its entry stage never became available (e.g. because of a wrong image). Nor should it if any stage
    stays without an available pod while the target lacks capacity: the corrected target would wait forever for the
    failed set. If the target itself needs a correction, the selected set is kept, because the target could not use the
    capacity.
    """
    pipeline = view.pipelines.get(revision)
    if pipeline is None or pipeline.spec.suspend:
        # A set with a lost spec cannot be repaired, and a suspended set must not be started.
        return view.can_serve(revision)
    if order_stages(pipeline)[0].name in view.never_came_up(revision):
        return False
    if not view.lacks_capacity(view.target) or view.needs_correction(view.target):
        return True
    return not any(view.fails(revision, name) for name in view.idle(revision))


def _own_models(pipeline: OmniPipeline) -> dict[str, str]:
    return {stage.name: describe_model(stage.model) for stage in pipeline.spec.stages if stage.model is not None}


def _target_waits(view: RolloutView) -> bool:
    """Returns whether the target's set must wait for old sets to end (Recreate). A set with Deployments never waits."""
    if view.pipeline.spec.rollout.strategy != "Recreate":
        return False
    begun = any(stage.deployment is not None for stage in view.live(view.target).stages.values())
    return not begun and not all(view.is_empty(revision) for revision in view.others)


def _children_of(view: RolloutView, revision: str) -> set[ChildKey]:
    return {
        key_of(child)
        for child in view.observed.children.values()
        if view.observed.owns(child) and child["metadata"].get("labels", {}).get(REVISION_LABEL) == revision
    }


def _phase(view: RolloutView, serving: str, waits: bool) -> Phase:
    target = view.target
    leftovers = [revision for revision in view.others if revision != serving and not view.is_empty(revision)]
    if view.pipeline.spec.suspend:
        return Phase.SUSPENDED if not leftovers and view.is_empty(target) else Phase.SUSPENDING
    if waits:
        return Phase.WAITING
    if serving != target:
        # Capacity does not count as missing while an old set is about to release some.
        blocked = view.lacks_capacity(target) and not leftovers
        return Phase.NEEDS_CAPACITY if blocked else Phase.ROLLING_OUT
    if view.is_available(target):
        return Phase.DRAINING if view.others else Phase.COMPLETE
    stages = [view.live(target).stage(name) for name, replicas in view.wanted(target).items() if replicas]
    if any(not stage.available and not stage.completed for stage in stages):
        return Phase.STARTING
    if any(stage.rolling or not stage.completed for stage in stages):
        return Phase.UPDATING
    return Phase.DRAINING if leftovers else Phase.INCOMPLETE


def _waiting_for(view: RolloutView, phase: Phase) -> tuple[str, ...]:
    if phase in (Phase.WAITING, Phase.DRAINING, Phase.SUSPENDING):
        revisions = [*view.others, *([view.target] if phase is Phase.SUSPENDING else [])]
        return tuple(
            f"{name} ({revision})"
            for revision in revisions
            for name, stage in view.live(revision).stages.items()
            if not stage.empty
        )
    return tuple(
        f"{name} ({view.target})"
        for name, replicas in view.wanted(view.target).items()
        if not view.is_stage_available(view.target, name, replicas)
    )


def _recheck_at(view: RolloutView) -> datetime | None:
    ends = [
        parse_time(pod["metadata"]["deletionTimestamp"]) + LOST_POD_SLACK
        for live in view.sets.values()
        for stage in live.stages.values()
        for pod in stage.pods
        if is_terminating(pod)
    ]
    checks = [next_check(stage, view.now) for live in view.sets.values() for stage in live.stages.values()]
    return min((time for time in (*ends, *checks) if time is not None and time > view.now), default=None)


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The input of a rollout decision, with its queries."""

    pipelines: Mapping[str, OmniPipeline]
    """Specs by revision, including the target revision. The spec of an old revision may be lost."""
    target: str
    """The revision of the spec."""
    observed: Observed
    sets: Mapping[str, LiveSet]
    """The revisions that exist."""
    selected: str | None
    """The revision that the live entry Service selects."""
    now: datetime
    held: Mapping[str, int] = field(default_factory=dict)
    """Numbers of pods of stages with scaling; see read_held."""
    _replicas: dict[tuple[str, Fate], Replicas] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results of `replicas`, which is called many times for the same revision."""

    @property
    def pipeline(self) -> OmniPipeline:
        """The current spec."""
        return self.pipelines[self.target]

    @property
    def others(self) -> tuple[str, ...]:
        """The existing revisions other than the target, in the order of their names."""
        return tuple(revision for revision in self.sets if revision != self.target)

    def live(self, revision: str) -> LiveSet:
        """Returns the revision's set; an empty one if it does not exist."""
        return self.sets.get(revision) or LiveSet(revision)

    def wanted(self, revision: str) -> Mapping[str, int]:
        """Returns the final replicas of each stage of the revision: for the target, as the current spec requests (0
        while suspended); for any other revision, as its own spec requests."""
        fate = fate_of(self.pipeline) if revision == self.target else Fate.RUN
        return self.replicas(revision, fate).goal

    def replicas(self, revision: str, fate: Fate) -> Replicas:
        """Returns the replicas of each stage of the revision."""
        found = self._replicas.get((revision, fate))
        if found is None:
            found = self._replicas[revision, fate] = decide_replicas(
                self.pipelines.get(revision), self.live(revision), fate, self.held
            )
        return found

    def is_available(self, revision: str) -> bool:
        """Returns whether every stage has all replicas of the current template, and can be reached."""
        wanted = self.wanted(revision)
        return bool(wanted) and all(self.is_stage_available(revision, *item) for item in wanted.items())

    def is_stage_available(self, revision: str, name: str, replicas: int) -> bool:
        """Returns whether one stage has that many replicas of the current template, and can be reached."""
        stage = self.live(revision).stage(name)
        return (
            stage.deployment is not None
            and not stage.rolling
            and stage.available >= replicas
            and (not replicas or is_reachable(self.observed, name, revision))
        )

    def can_serve(self, revision: str) -> bool:
        """Returns whether every stage that should have replicas has an available pod."""
        wanted = {name for name, replicas in self.wanted(revision).items() if replicas}
        return bool(wanted) and all(self.live(revision).stage(name).available for name in wanted)

    def idle(self, revision: str) -> list[str]:
        """Returns the stages that should have replicas, but have no available pod."""
        live = self.live(revision)
        return [name for name, replicas in self.wanted(revision).items() if replicas and not live.stage(name).available]

    def never_came_up(self, revision: str) -> list[str]:
        """Returns the idle stages whose current template never had an available pod, as far as is known.

        They are still starting, or cannot start. A Deployment that was completed with 0 replicas is not recognised.
        """
        live = self.live(revision)
        return [name for name in self.idle(revision) if not live.stage(name).completed]

    def fails(self, revision: str, name: str) -> bool:
        """Returns whether an idle stage stays idle until something else changes.

        A stage that never came up stays idle if it failed or does not fit the cluster. A stage that was complete once
        has worked, and most failures pass with the next restart. So a completed stage stays idle only if a person must
        correct something, or if other pods took the capacity of its pods.
        """
        stage = self.live(revision).stage(name)
        if stage.completed:
            lost_at = lost_capacity_at(stage)
            return needs_correction(stage, self.now) or (lost_at is not None and lost_at <= self.now)
        cause = find_cause(stage, self.now)
        return lacks_capacity(stage) or (cause is not None and cause.hard)

    def is_empty(self, revision: str) -> bool:
        """Returns whether the revision has no pods and will get none."""
        return all(stage.empty for stage in self.live(revision).stages.values())

    def needs_correction(self, revision: str) -> bool:
        """Returns whether the revision cannot become available until a person corrects something."""
        return any(needs_correction(stage, self.now) for stage in self.live(revision).stages.values())

    def lacks_capacity(self, revision: str) -> bool:
        """Returns whether a pod of the revision does not fit the cluster."""
        return any(lacks_capacity(stage) for stage in self.live(revision).stages.values())
