"""Derives the conditions and their messages from an assessment of the pipeline.

Ready        a client can connect and is served: every stage of the serving revision has a ready pod that can be
             reached, and the stable Services lead to the entry stage. It stays True during a healthy rollout, because
             the old revision serves until the new one can.
Progressing  the live state does not match the spec yet, and the operator is changing the live state (progress.py).
Degraded     something failed, or fewer replicas run than before. The steps of a healthy rollout are not failures.
SpecUnderstood  written only while it is False: the operator does not know a field or a value of the spec.
"""

from __future__ import annotations

from collections.abc import Sequence

from omni_operator.names import entry_service_name, headless_service_name
from omni_operator.reasons import Reason
from omni_operator.rollout.rollout import Phase
from omni_operator.state.container_causes import Cause
from omni_operator.status.assessment import Assessment, StageState, worst_of
from omni_operator.status.blockers import describe_altered, describe_conflicts, describe_errors, find_blockers
from omni_operator.status.conditions import DEGRADED, PROGRESSING, READY, SPEC_UNDERSTOOD, Verdict
from omni_operator.status.progress import describe_progress, judge_progressing


def judge(assessment: Assessment) -> dict[str, Verdict]:
    """Returns the verdict on every condition; SpecUnderstood is absent while it is true."""
    verdicts = {
        READY: judge_ready(assessment),
        PROGRESSING: judge_progressing(assessment),
        DEGRADED: judge_degraded(assessment),
    }
    spec = judge_spec(assessment)
    return verdicts if spec is None else {**verdicts, SPEC_UNDERSTOOD: spec}


def judge_spec(assessment: Assessment) -> Verdict | None:
    """Returns the verdict on SpecUnderstood if it is False."""
    if assessment.halt is not None and assessment.halt.reason is Reason.INVALID_SPEC:
        return Verdict(False, Reason.INVALID_SPEC, assessment.halt.message)
    if not assessment.ignored:
        return None
    return Verdict(
        False,
        Reason.UNKNOWN_FIELDS,
        f"this operator does not know, and ignores: {', '.join(assessment.ignored)}; the CRD is newer than the "
        "operator: upgrade the operator",
    )


def judge_ready(assessment: Assessment) -> Verdict:
    """Returns the verdict on Ready: whether a client can connect and is served."""
    halt = assessment.halt
    if halt is not None and (halt.reason is Reason.TERMINATING or not assessment.stages):
        return Verdict(False, halt.reason, halt.message)
    if assessment.suspended:
        return Verdict(False, Reason.SUSPENDED, "spec.suspend is true, no pods run; set it to false to serve")
    entries = (entry_service_name(assessment.pipeline), headless_service_name(assessment.pipeline))
    if any(item.key.kind == "Service" and item.key.name in entries for item in assessment.foreign):
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(assessment))
    idle = [stage.name for stage in assessment.stages if not stage.wanted]
    if idle:
        return Verdict(
            False, Reason.SCALED_TO_ZERO, f"{_stages(idle)} {_have(idle)} replicas: 0; set it to 1 or more to serve"
        )
    missing = [stage for stage in assessment.stages if not stage.is_ready]
    if missing or not assessment.stages:
        return _judge_missing(assessment, missing)
    if assessment.entry_problem:
        blocker = next(item for item in find_blockers(assessment) if item.reason is not Reason.CHANGED_BY_ADMISSION)
        reason = blocker.reason if blocker.reason is Reason.APPLY_FAILED else Reason.ENTRY_NOT_READY
        why = f"; {blocker.message}" if reason is Reason.APPLY_FAILED else ""
        return Verdict(False, reason, f"{assessment.entry_problem}: clients cannot connect{why}")
    count = len(assessment.stages)
    return Verdict(
        True,
        Reason.ALL_STAGES_READY,
        f"all {count} stages serve" if count > 1 else f"stage {assessment.stages[0].name} serves",
    )


def _judge_missing(assessment: Assessment, missing: Sequence[StageState]) -> Verdict:
    names = [stage.name for stage in missing]
    worst = worst_of(missing)
    if worst is not None and worst.cause is not None:
        others = [name for name in names if name != worst.name]
        also = f"; {_stages(others)} {_have(others)} no ready pod either" if others else ""
        return Verdict(False, worst.cause.reason, f"stage {worst.name}: {worst.cause.message}{also}")
    if assessment.foreign:
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(assessment))
    if assessment.errors:
        return Verdict(False, Reason.APPLY_FAILED, describe_errors(assessment.errors))
    if assessment.phase is Phase.WAITING:
        return Verdict(False, Reason.WAITING_FOR_OLD_REVISION, describe_progress(assessment))
    if missing and all(stage.is_unreachable for stage in missing):
        return Verdict(False, Reason.STAGES_NOT_READY, _describe_unreachable(missing))
    if assessment.halt is not None:
        also = f"{_stages(names)} {_have(names)} no ready pod; " if names else ""
        return Verdict(False, assessment.halt.reason, f"{also}{assessment.halt.message}")
    if assessment.settled:
        return Verdict(False, Reason.REPLICAS_MISSING, _describe_losses(missing))
    wait = (
        "objects of a deleted pipeline of this name are removed first"
        if assessment.leftovers
        else "pods start and load"
    )
    return Verdict(False, Reason.STAGES_NOT_READY, f"{_stages(names)} {_have(names)} no ready pod yet; wait: {wait}")


def judge_degraded(assessment: Assessment) -> Verdict:
    """Returns the verdict on Degraded: whether something failed or replicas were lost."""
    halt = assessment.halt
    if halt is not None:
        return Verdict(halt.reason is not Reason.TERMINATING, halt.reason, halt.message)
    failures = (Reason.CHILD_CONFLICT, Reason.APPLY_FAILED, Reason.CHANGED_BY_ADMISSION)
    for blocker in find_blockers(assessment):
        if blocker.reason in failures:
            return Verdict(True, blocker.reason, blocker.message)
    failing = worst_of(stage for stage in assessment.stages if stage.cause is not None and stage.cause.hard)
    if failing is not None and failing.cause is not None:
        return Verdict(True, failing.cause.reason, f"stage {failing.name}: {failing.cause.message}")
    if (loss := _judge_losses(assessment)) is not None:
        return loss
    failing = worst_of(stage for stage in assessment.rising if stage.cause is not None and stage.cause.hard)
    if failing is not None and failing.cause is not None and not _is_capacity(assessment, failing.cause):
        serves = f"; revision {assessment.serving} keeps serving" if assessment.serves else ""
        return Verdict(
            True,
            failing.cause.reason,
            f"revision {failing.revision}, stage {failing.name}: {failing.cause.message}{serves}",
        )
    if assessment.altered:
        harmless = describe_altered(assessment.altered)
        return Verdict(False, Reason.CHANGED_BY_ADMISSION, f"nothing failed, but {harmless}")
    if assessment.mistakes:
        return Verdict(False, Reason.AS_EXPECTED, f"nothing failed, but {'; '.join(assessment.mistakes)}")
    return Verdict(False, Reason.AS_EXPECTED, "nothing failed")


def _judge_losses(assessment: Assessment) -> Verdict | None:
    """Returns the verdict if something is missing from a set that was complete. A set that starts has lost nothing."""
    was_complete = assessment.settled if assessment.serving == assessment.target else True
    if not was_complete or assessment.suspended:
        return None
    lost = [stage for stage in assessment.stages if stage.is_short]
    worst = worst_of(lost)
    if worst is not None and worst.cause is not None:
        return Verdict(True, worst.cause.reason, f"stage {worst.name}: {worst.cause.message}")
    if lost and all(stage.is_unreachable for stage in lost):
        return Verdict(True, Reason.STAGES_NOT_READY, _describe_unreachable(lost))
    if lost:
        return Verdict(True, Reason.REPLICAS_MISSING, _describe_losses(lost))
    if assessment.entry_problem:
        return Verdict(True, Reason.ENTRY_NOT_READY, f"{assessment.entry_problem}: clients cannot connect")
    return None


def _is_capacity(assessment: Assessment, cause: Cause) -> bool:
    """Returns whether RolloutNeedsCapacity already reports this cause, which does not affect the serving revision."""
    return assessment.phase is Phase.NEEDS_CAPACITY and cause.reason in (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)


def _describe_losses(stages: Sequence[StageState]) -> str:
    parts = ", ".join(f"{stage.name} {min(stage.available, stage.wanted)} of {stage.wanted}" for stage in stages)
    return f"stages lost replicas ({parts} available); they are being replaced; if it lasts, see kubectl describe pod"


def _describe_unreachable(stages: Sequence[StageState]) -> str:
    parts = "; ".join(f"stage {stage.name}: {stage.problem}" for stage in stages)
    return f"pods are ready, but cannot be reached: {parts}"


def _stages(names: Sequence[str]) -> str:
    return f"stage{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _have(names: Sequence[str]) -> str:
    return "have" if len(names) > 1 else "has"
