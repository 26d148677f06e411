"""What the conditions are derived from: the state of each stage, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Altered, ChildConflict
from omni_operator.rollout.rollout import Phase
from omni_operator.scaling.notes import ScaleNotes
from omni_operator.state.container_causes import Cause
from omni_operator.state.pod_causes import rank_of
from omni_operator.status.conditions import Verdict


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of one stage of one revision."""

    name: str
    revision: str
    wanted: int
    """Final number of replicas (see rollout/replicas.py); 0 while the pipeline is suspended."""
    available: int
    ready_replicas: int
    reachable: bool
    """Whether its Service leads to a ready pod."""
    cause: Cause | None
    """Why replicas are missing, if a cause is known."""
    problem: str = ""
    """What is wrong with its Service, if anything is."""
    model: str = ""
    """Its checkpoint, if it has one of its own."""
    scaled: bool = False
    """Whether its number of pods follows the load. Then pods that are missing may never have been there."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.wanted > 0 and self.available > 0 and self.reachable

    @property
    def is_short(self) -> bool:
        """Whether replicas are missing."""
        needed = min(self.wanted, 1) if self.scaled else self.wanted
        return self.available < needed or (self.wanted > 0 and not self.reachable)

    @property
    def is_unreachable(self) -> bool:
        """Whether it has pods, but its Service does not lead to them."""
        return self.wanted > 0 and self.available > 0 and bool(self.problem)


@dataclass(frozen=True, slots=True)
class ChildError:
    """A write that failed, and that the status reports."""

    what: str
    """The object, e.g. `Deployment tiny-thinker-1a2b3c4`."""
    message: str
    """The API server's message."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Why the operator does not act on the live spec."""

    reason: Reason
    """InvalidSpec, TooManyPipelines or Terminating."""
    message: str


@dataclass(frozen=True, slots=True)
class Assessment:
    """All inputs of the conditions."""

    pipeline: str
    namespace: str
    suspended: bool
    phase: Phase
    serving: str
    target: str
    stages: Sequence[StageState]
    """Stages of the serving revision, in the order of the graph."""
    rising: Sequence[StageState] = ()
    """Stages of the target, if another revision serves."""
    ending: Sequence[StageState] = ()
    """Stages of revisions that are neither."""
    waiting_for: Sequence[str] = ()
    """Stages that the phase waits for."""
    entry_problem: str = ""
    """Why clients cannot connect through the stable Services, although all stages serve; empty if they can."""
    conflicts: Sequence[ChildConflict] = ()
    errors: Sequence[ChildError] = ()
    altered: Sequence[Altered] = ()
    unwritten: str = ""
    """What is not written yet, and why; empty if everything is."""
    ignored: Sequence[str] = ()
    """Fields of the spec that the operator does not know."""
    mistakes: Sequence[str] = ()
    """Fields of the spec that are likely mistakes, with what is likely meant."""
    scale: ScaleNotes | None = None
    """What scaling found out; None if it decided nothing yet, or if no stage has scaling."""
    halt: Halt | None = None
    route: Verdict | None = None
    """The verdict on the route from outside the cluster; None if there is to be none."""
    asleep: bool = False
    """Whether the pipeline has no pods because nobody uses it."""
    waking: bool = False
    """Whether it slept, and has not served since."""
    settled: bool = False
    """Whether the rollout of this generation was complete before. Then missing replicas were lost."""

    @property
    def serves(self) -> bool:
        """Whether every stage of the serving revision serves."""
        return all(stage.is_ready for stage in self.stages)

    @property
    def foreign(self) -> Sequence[ChildConflict]:
        """Conflicts that somebody has to resolve."""
        return [conflict for conflict in self.conflicts if not conflict.leftover]

    @property
    def leftovers(self) -> Sequence[ChildConflict]:
        """Conflicts with children of a deleted pipeline, which are about to be removed."""
        return [conflict for conflict in self.conflicts if conflict.leftover]


def worst_of(stages: Iterable[StageState]) -> StageState | None:
    """Returns the stage whose cause must be reported; among causes of equal rank, the first in the graph."""
    known = [stage for stage in stages if stage.cause is not None]
    return min(known, key=lambda stage: rank_of(stage.cause) if stage.cause else 0, default=None)
