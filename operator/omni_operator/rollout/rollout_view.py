"""Queries of the rollout decision on existing revisions: which are available, can serve, or cannot become available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from omni_operator.rollout.replicas import Fate, Replicas, decide_replicas, fate_of
from omni_operator.state.capacity import lacks_capacity, lost_capacity_at
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_operator.state.pod_causes import find_cause, needs_correction
from omni_operator.state.services import is_reachable
from omni_proto.pipeline import OmniPipeline


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
                self.pipelines.get(revision), self.live(revision), fate
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
