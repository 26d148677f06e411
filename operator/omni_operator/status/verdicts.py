"""Derives the conditions and their messages from an assessment of the pipeline.

Ready        requests are served: every stage of the serving revision has a ready pod. It stays True during a healthy
             rollout, because the old revision serves until the new one can.
Progressing  the live state does not match the spec yet, and the operator is changing the live state.
Degraded     something failed, or fewer replicas run than before. The steps of a healthy rollout are not failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omni_operator.names import entry_service_name
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Conflict
from omni_operator.rollout.rollout import Phase
from omni_operator.state.container_causes import Cause
from omni_operator.state.pod_causes import rank_of
from omni_operator.status.conditions import DEGRADED, PROGRESSING, READY, Verdict


@dataclass(frozen=True, slots=True)
class StageState:
    """The state of one stage of one revision."""

    name: str
    revision: str
    wanted: int
    """Final number of replicas (see rollout/replicas.py): the spec's number, or 0 while the pipeline is suspended."""
    available: int
    ready_replicas: int
    reachable: bool
    """Whether its Service has a ready endpoint."""
    cause: Cause | None
    """Why replicas are missing, if a cause is known."""

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.wanted > 0 and self.available > 0 and self.reachable

    @property
    def is_short(self) -> bool:
        """Whether replicas are missing."""
        return self.available < self.wanted or (self.wanted > 0 and not self.reachable)


@dataclass(frozen=True, slots=True)
class ChildError:
    """A write that failed, and that the status reports."""

    what: str
    """The object, e.g. `Deployment tiny-thinker-1a2b3c4`."""
    message: str
    """The API server's message."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """All inputs of the conditions."""

    pipeline: str
    suspended: bool
    phase: Phase
    serving: str
    target: str
    stages: Sequence[StageState]
    """Stages of the serving revision, in the order of the graph."""
    rising: Sequence[StageState] = ()
    """Stages of the target, if another revision serves."""
    waiting_for: Sequence[str] = ()
    """Stages that the phase waits for."""
    conflicts: Sequence[Conflict] = ()
    errors: Sequence[ChildError] = ()
    settled: bool = False
    """Whether the rollout of this generation was complete before. Then missing replicas were lost."""

    @property
    def serves(self) -> bool:
        """Whether every stage of the serving revision serves."""
        return all(stage.is_ready for stage in self.stages)

    @property
    def foreign(self) -> Sequence[Conflict]:
        """Conflicts that somebody has to resolve."""
        return [conflict for conflict in self.conflicts if not conflict.leftover]

    @property
    def leftovers(self) -> Sequence[Conflict]:
        """Conflicts with children of a deleted pipeline, which are about to be removed."""
        return [conflict for conflict in self.conflicts if conflict.leftover]


def judge(assessment: Assessment) -> dict[str, Verdict]:
    """Returns the verdict on every condition."""
    return {
        READY: judge_ready(assessment),
        PROGRESSING: judge_progressing(assessment),
        DEGRADED: judge_degraded(assessment),
    }


def judge_ready(assessment: Assessment) -> Verdict:
    """Returns the verdict on Ready: whether requests are served."""
    if assessment.suspended:
        return Verdict(False, Reason.SUSPENDED, "spec.suspend is true, no pods run; set it to false to serve")
    entry = entry_service_name(assessment.pipeline)
    taken = [conflict for conflict in assessment.foreign if conflict.key == ("Service", entry)]
    if taken:
        return Verdict(False, Reason.CHILD_CONFLICT, _describe_conflicts(taken))
    idle = [stage.name for stage in assessment.stages if not stage.wanted]
    if idle:
        return Verdict(
            False, Reason.SCALED_TO_ZERO, f"{_stages(idle)} {_have(idle)} replicas: 0; set it to 1 or more to serve"
        )
    missing = [stage for stage in assessment.stages if not stage.is_ready]
    if not missing and assessment.stages:
        count = len(assessment.stages)
        return Verdict(
            True,
            Reason.ALL_STAGES_READY,
            f"all {count} stages serve" if count > 1 else f"stage {assessment.stages[0].name} serves",
        )
    return _judge_missing(assessment, missing)


def _judge_missing(assessment: Assessment, missing: Sequence[StageState]) -> Verdict:
    names = [stage.name for stage in missing]
    worst = _worst(missing)
    if worst is not None and worst.cause is not None:
        others = [name for name in names if name != worst.name]
        also = f"; {_stages(others)} {_have(others)} no ready pod either" if others else ""
        return Verdict(False, worst.cause.reason, f"stage {worst.name}: {worst.cause.message}{also}")
    if assessment.foreign:
        return Verdict(False, Reason.CHILD_CONFLICT, _describe_conflicts(assessment.foreign))
    if assessment.errors:
        return Verdict(False, Reason.APPLY_FAILED, _describe_errors(assessment.errors))
    if assessment.phase is Phase.WAITING:
        return Verdict(False, Reason.WAITING_FOR_OLD_REVISION, _describe_progress(assessment))
    if assessment.settled:
        return Verdict(False, Reason.REPLICAS_MISSING, _describe_losses(missing))
    wait = (
        "objects of a deleted pipeline of this name are removed first"
        if assessment.leftovers
        else "pods start and load"
    )
    return Verdict(False, Reason.STAGES_NOT_READY, f"{_stages(names)} {_have(names)} no ready pod yet; wait: {wait}")


_PROGRESS: Final[Mapping[Phase, Reason]] = {
    Phase.STARTING: Reason.STARTING,
    Phase.UPDATING: Reason.UPDATING,
    Phase.ROLLING_OUT: Reason.ROLLING_OUT,
    Phase.NEEDS_CAPACITY: Reason.ROLLOUT_NEEDS_CAPACITY,
    Phase.WAITING: Reason.WAITING_FOR_OLD_REVISION,
    Phase.DRAINING: Reason.DRAINING_OLD_REVISION,
    Phase.SUSPENDING: Reason.SUSPENDING,
}


def judge_progressing(assessment: Assessment) -> Verdict:
    """Returns the verdict on Progressing: whether the live state is still changing towards the spec."""
    phase = assessment.phase
    if phase is Phase.SUSPENDED:
        return Verdict(False, Reason.SUSPENDED, "spec.suspend is true, no pods run")
    if phase is Phase.COMPLETE or (phase is Phase.INCOMPLETE and assessment.settled):
        return Verdict(False, Reason.ROLLOUT_COMPLETE, f"revision {assessment.target} is rolled out")
    if phase is Phase.INCOMPLETE:
        # The pods start for the first time, or there are more of them than before.
        reason = Reason.UPDATING if assessment.serves else Reason.STARTING
    else:
        reason = _PROGRESS[phase]
    return Verdict(True, reason, _describe_progress(assessment))


def _describe_progress(assessment: Assessment) -> str:
    target, serving, waiting = assessment.target, assessment.serving, ", ".join(assessment.waiting_for)
    cause = _describe_cause(_worst(assessment.rising))
    match assessment.phase:
        case Phase.ROLLING_OUT:
            serves = ", which serves" if assessment.serves else ""
            return f"revision {target} starts beside {serving}{serves}; waiting for {waiting}{cause}"
        case Phase.NEEDS_CAPACITY:
            serves = ", which keeps serving" if assessment.serves else ""
            return (
                f"revision {target} does not fit beside {serving}{serves}{cause}; add nodes or quota, or set "
                "spec.rollout.strategy: Recreate, which pauses serving"
            )
        case Phase.WAITING:
            return f"revision {target} starts once requests to the old one have ended; waiting for {waiting}"
        case Phase.DRAINING:
            return f"revision {target} serves; the old one drains" + (f": {waiting}" if waiting else "")
        case Phase.SUSPENDING:
            return f"spec.suspend is true, pods drain: {waiting}"
        case _ if assessment.serves:
            return f"pods of revision {target} are being updated to the spec: {waiting}"
        case _:
            # Only Ready names the missing stages, so that a change of these stages changes only one message.
            return f"pods of revision {target} are starting"


def judge_degraded(assessment: Assessment) -> Verdict:
    """Returns the verdict on Degraded: whether something failed or replicas were lost."""
    if assessment.foreign:
        return Verdict(True, Reason.CHILD_CONFLICT, _describe_conflicts(assessment.foreign))
    if assessment.errors:
        return Verdict(True, Reason.APPLY_FAILED, _describe_errors(assessment.errors))
    failing = _worst(stage for stage in assessment.stages if stage.cause is not None and stage.cause.hard)
    if failing is not None and failing.cause is not None:
        return Verdict(True, failing.cause.reason, f"stage {failing.name}: {failing.cause.message}")
    # Replicas that are missing from a set that was complete were lost. A set that is starting has lost none.
    was_complete = assessment.settled if assessment.serving == assessment.target else True
    lost = [stage for stage in assessment.stages if stage.is_short]
    if was_complete and lost and not assessment.suspended:
        worst = _worst(lost)
        if worst is not None and worst.cause is not None:
            return Verdict(True, worst.cause.reason, f"stage {worst.name}: {worst.cause.message}")
        return Verdict(True, Reason.REPLICAS_MISSING, _describe_losses(lost))
    failing = _worst(stage for stage in assessment.rising if stage.cause is not None and stage.cause.hard)
    if failing is not None and failing.cause is not None and not _is_capacity(assessment, failing.cause):
        serves = f"; revision {assessment.serving} keeps serving" if assessment.serves else ""
        return Verdict(
            True,
            failing.cause.reason,
            f"revision {failing.revision}, stage {failing.name}: {failing.cause.message}{serves}",
        )
    return Verdict(False, Reason.AS_EXPECTED, "nothing failed")


def _is_capacity(assessment: Assessment, cause: Cause) -> bool:
    """Returns whether RolloutNeedsCapacity already reports this cause, which does not affect the serving revision."""
    return assessment.phase is Phase.NEEDS_CAPACITY and cause.reason in (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)


def _worst(stages: Iterable[StageState]) -> StageState | None:
    """Returns the stage whose cause must be reported; among causes of equal rank, the first in the graph."""
    known = [stage for stage in stages if stage.cause is not None]
    return min(known, key=lambda stage: rank_of(stage.cause) if stage.cause else 0, default=None)


def _describe_cause(stage: StageState | None) -> str:
    return f"; stage {stage.name}: {stage.cause.message}" if stage is not None and stage.cause is not None else ""


def _describe_losses(stages: Sequence[StageState]) -> str:
    parts = ", ".join(f"{stage.name} {min(stage.available, stage.wanted)} of {stage.wanted}" for stage in stages)
    return f"stages lost replicas ({parts} available); they are being replaced; if it lasts, see kubectl describe pod"


def _describe_conflicts(conflicts: Sequence[Conflict]) -> str:
    first = conflicts[0]
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    owner = f"belongs to {first.owner}" if first.owner else "was not made by this pipeline"
    return (
        f"{first.key.kind} {first.key.name} {owner}{more} and is not changed; delete or rename it, or give the "
        "pipeline another name"
    )


def _describe_errors(errors: Sequence[ChildError]) -> str:
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"writing {first.what}{more} failed: {' '.join(first.message.split())}; the operator retries"


def _stages(names: Sequence[str]) -> str:
    return f"stage{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _have(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
