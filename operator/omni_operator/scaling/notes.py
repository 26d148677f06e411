"""What scaling found out about a pipeline: the part of the status and of the metrics that it fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from omni_operator.scaling.budget import Budget
from omni_operator.scaling.decision import StageAsk, StageDecision
from omni_operator.scaling.objectives import Finding


@dataclass(frozen=True, slots=True)
class StageNote:
    """The last decision about one stage."""

    replicas: int
    desired: int | None = None
    """Pods that the load needs; None while the load is unknown."""
    why: str = ""
    limited: bool = False
    """Whether maxReplicas is below desired."""
    blocked: str = ""
    """Why pods do not start that the load needs."""
    external: bool = False
    """Whether another autoscaler sets the number."""

    @classmethod
    def of(cls, ask: StageAsk, decision: StageDecision | None, *, external: bool) -> StageNote:
        """Returns the note of a decision; None: the load of the stage is unknown."""
        if decision is None:
            return cls(ask.current, why="no two readings of the load yet", external=external)
        # Of the pods that were asked for, some do not start: as many are needed, or more.
        blocked = ask.blocked if decision.desired >= ask.current else ""
        replicas = ask.current if external else decision.replicas
        limited = decision.limited and not external
        return cls(replicas, decision.desired, decision.why, limited, blocked, external)


@dataclass(frozen=True, slots=True)
class ObjectivesNote:
    """What was measured of spec.objectives."""

    findings: Sequence[Finding] = ()
    """One for each objective with enough answers in the window."""
    holds_back: str = ""
    """The stage that a missed objective waits for; empty if unknown."""


@dataclass(slots=True)
class ScaleNotes:
    """The notes of one pipeline."""

    stages: Mapping[str, StageNote] = field(default_factory=dict)
    """By stage, those with scaling."""
    objectives: ObjectivesNote | None = None
    """None without spec.objectives."""
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    """By objective. They are metrics, not a part of the status."""

    def take(self, stages: Mapping[str, StageNote], objectives: ObjectivesNote | None) -> bool:
        """Replace the notes. Returns whether the status must show it.

        A reason that differs only by its figures stays as it was written first: else each reading would be a write.
        """
        kept = {name: _settle(self.stages.get(name), note) for name, note in stages.items()}
        changed = kept != self.stages or _verdict(objectives) != _verdict(self.objectives)
        self.stages = kept
        if changed or objectives is None:
            self.objectives = objectives
        return changed


def _settle(before: StageNote | None, note: StageNote) -> StageNote:
    if before is not None and replace(note, why=before.why) == before:
        return before
    return note


def _verdict(note: ObjectivesNote | None) -> object:
    if note is None:
        return None
    return [(one.field, one.promised, one.is_missed) for one in note.findings], note.holds_back
