"""What a rollout's decision asks about the revisions that exist: which are available, can serve, never came up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.names import stage_name
from omni_operator.rollout.replicas import Fate, Replicas, decide_replicas, fate_of
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_operator.state.pod_causes import find_cause, lacks_capacity
from omni_proto.pipeline import OmniPipeline


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The input of a rollout's decision, and the questions that it asks."""

    pipelines: Mapping[str, OmniPipeline]
    """Specs by revision, the target's included; that of an old revision may be lost."""
    target: str
    """The revision that the spec asks for."""
    observed: Observed
    sets: Mapping[str, LiveSet]
    """The revisions that exist."""
    selected: str | None
    """The revision that the live entry Service selects."""
    now: datetime

    @property
    def pipeline(self) -> OmniPipeline:
        """The spec that is asked for."""
        return self.pipelines[self.target]

    @property
    def others(self) -> tuple[str, ...]:
        """The revisions that exist and are not the target, in the order of their names."""
        return tuple(revision for revision in self.sets if revision != self.target)

    def live(self, revision: str) -> LiveSet:
        """The revision's set; an empty one if it does not exist."""
        return self.sets.get(revision) or LiveSet(revision)

    def wanted(self, revision: str) -> Mapping[str, int]:
        """Returns the replicas that each stage of the revision is to come to while it may serve."""
        fate = fate_of(self.pipeline) if revision == self.target else Fate.RUN
        return self.replicas(revision, fate).goal

    def replicas(self, revision: str, fate: Fate) -> Replicas:
        """Returns the replicas of each stage of the revision."""
        return decide_replicas(self.pipelines.get(revision), self.live(revision), fate)

    def is_available(self, revision: str) -> bool:
        """Whether every stage has all its replicas, of the present template, and the stage above can resolve it."""
        wanted = self.wanted(revision)
        return bool(wanted) and all(self.is_stage_available(revision, *item) for item in wanted.items())

    def is_stage_available(self, revision: str, name: str, replicas: int) -> bool:
        """Whether one stage has so many replicas, of the present template, and a Service that finds them."""
        stage = self.live(revision).stage(name)
        return (
            stage.deployment is not None
            and not stage.rolling
            and stage.available >= replicas
            and (not replicas or self._endpoints(revision, name) > 0)
        )

    def _endpoints(self, revision: str, name: str) -> int:
        return self.observed.endpoints.get(stage_name(self.observed.name, name, revision), 0)

    def can_serve(self, revision: str) -> bool:
        """Whether every stage that has replicas has an available pod."""
        wanted = {name for name, replicas in self.wanted(revision).items() if replicas}
        return bool(wanted) and all(self.live(revision).stage(name).available for name in wanted)

    def never_came_up(self, revision: str) -> list[str]:
        """Stages without an available pod whose present template never had one: they start only now, or are wrong."""
        live = self.live(revision)
        return [
            name
            for name, replicas in self.wanted(revision).items()
            if replicas and not live.stage(name).available and not live.stage(name).completed
        ]

    def fails(self, revision: str, name: str) -> bool:
        """Whether a stage will not come up by waiting: something is wrong with it, or there is no room for it."""
        stage = self.live(revision).stage(name)
        cause = find_cause(stage, self.now)
        return lacks_capacity(stage) or (cause is not None and cause.hard)

    def is_empty(self, revision: str) -> bool:
        """Whether no pod of the revision runs and none will be made."""
        return all(stage.empty for stage in self.live(revision).stages.values())

    def lacks_capacity(self, revision: str) -> bool:
        """Returns whether a pod of the revision does not fit the cluster."""
        return any(lacks_capacity(stage) for stage in self.live(revision).stages.values())
