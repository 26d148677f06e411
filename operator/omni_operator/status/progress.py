"""Derives the condition Progressing, and its message in each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from omni_operator.reasons import Reason
from omni_operator.rollout.rollout import Phase
from omni_operator.status.assessment import Assessment, StageState, worst_of
from omni_operator.status.blockers import Blocker, find_blockers
from omni_operator.status.conditions import Verdict

_PROGRESS: Final[Mapping[Phase, Reason]] = {
    Phase.STARTING: Reason.STARTING,
    Phase.UPDATING: Reason.UPDATING,
    Phase.ROLLING_OUT: Reason.ROLLING_OUT,
    Phase.NEEDS_CAPACITY: Reason.ROLLOUT_NEEDS_CAPACITY,
    Phase.WAITING: Reason.WAITING_FOR_OLD_REVISION,
    Phase.DRAINING: Reason.DRAINING_OLD_REVISION,
    Phase.SUSPENDING: Reason.SUSPENDING,
}
AFTER_COMPLETION: Final = frozenset(
    {
        Reason.ROLLOUT_COMPLETE,
        Reason.CHILD_CONFLICT,
        Reason.APPLY_FAILED,
        Reason.CHANGED_BY_ADMISSION,
        Reason.UPDATING,
        Reason.ENTRY_NOT_READY,
    }
)
"""Reasons of Progressing=False for a generation that was rolled out. All but the first say what is wrong since then."""


def judge_progressing(assessment: Assessment) -> Verdict:
    """Returns the verdict on Progressing: whether the live state is still changing towards the spec."""
    phase, halt, target = assessment.phase, assessment.halt, assessment.target
    if halt is not None:
        return Verdict(halt.reason is Reason.TERMINATING, halt.reason, halt.message)
    blockers = find_blockers(assessment)
    if phase is Phase.SUSPENDED:
        return Verdict(False, Reason.SUSPENDED, "; ".join(["spec.suspend is true, no pods run", *_messages(blockers)]))
    if phase is Phase.COMPLETE or (phase is Phase.INCOMPLETE and assessment.settled):
        if blockers:
            return Verdict(not assessment.settled, blockers[0].reason, f"revision {target}: {blockers[0].message}")
        return Verdict(False, Reason.ROLLOUT_COMPLETE, f"revision {target} is rolled out")
    if phase is Phase.INCOMPLETE:
        # The pods start for the first time, or there are more of them than before.
        reason = Reason.UPDATING if assessment.serves else Reason.STARTING
    else:
        reason = _PROGRESS[phase]
    return Verdict(True, reason, "; ".join([describe_progress(assessment), *_messages(blockers)]))


def describe_progress(assessment: Assessment) -> str:
    """Returns what the phase waits for, and the worst known cause of the wait."""
    target, serving, waiting = assessment.target, assessment.serving, ", ".join(assessment.waiting_for)
    rising = _describe_cause(worst_of(assessment.rising))
    cause = _describe_cause(worst_of([*assessment.stages, *assessment.rising, *assessment.ending]))
    match assessment.phase:
        case Phase.ROLLING_OUT:
            serves = ", which serves" if assessment.serves else ""
            return f"revision {target} starts beside {serving}{serves}; waiting for {waiting}{rising}"
        case Phase.NEEDS_CAPACITY:
            serves = ", which keeps serving" if assessment.serves else ""
            return (
                f"revision {target} does not fit beside {serving}{serves}{rising}; add nodes or quota, or set "
                "spec.rollout.strategy: Recreate, which pauses serving"
            )
        case Phase.WAITING:
            return f"revision {target} starts once requests to the old one have ended; waiting for {waiting}{cause}"
        case Phase.DRAINING:
            return f"revision {target} serves; the old one drains" + (f": {waiting}" if waiting else "") + cause
        case Phase.SUSPENDING:
            return f"spec.suspend is true, pods drain: {waiting}{cause}"
        case _ if assessment.serves:
            return f"pods of revision {target} are being updated to the spec: {waiting}{cause}"
        case _:
            # Only Ready names the missing stages, so that a change of these stages changes only one message.
            return f"pods of revision {target} are starting{cause}"


def _messages(blockers: Sequence[Blocker]) -> list[str]:
    return [blocker.message for blocker in blockers]


def _describe_cause(stage: StageState | None) -> str:
    return f"; stage {stage.name}: {stage.cause.message}" if stage is not None and stage.cause is not None else ""
