"""Derives the conditions and their messages from an assessment of the pipeline.

Ready        a client can connect and is served: every stage of the serving revision has a ready pod that can be
             reached, and the stable Services lead to the entry stage. It stays True during a healthy rollout, because
             the old revision serves until the new one can.
Progressing  the live state does not match the spec yet, and the operator is changing the live state.
Degraded     something failed, or fewer replicas run than before. The steps of a healthy rollout are not failures.
Scaling, ObjectivesMet  in capacity.py; RouteAccepted  in route.py
SpecUnderstood  written only while it is False: the operator does not know a field or a value of the spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from omni_operator.kinds import FIELD_MANAGER
from omni_operator.names import MANAGED_BY_LABEL, entry_service_name, headless_service_name, scale_target_name
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Altered, ChildConflict
from omni_operator.rollout.rollout import Phase
from omni_operator.state.container_causes import Cause
from omni_operator.status.assessment import Assessment, ChildError, StageState, worst_of
from omni_operator.status.capacity import judge_objectives, judge_scaling
from omni_operator.status.conditions import (
    DEGRADED,
    OBJECTIVES_MET,
    PROGRESSING,
    READY,
    ROUTE_ACCEPTED,
    SCALING,
    SPEC_UNDERSTOOD,
    Verdict,
)


def judge(assessment: Assessment) -> dict[str, Verdict]:
    """Returns the verdict on every condition that the pipeline has."""
    verdicts = {
        READY: judge_ready(assessment),
        PROGRESSING: judge_progressing(assessment),
        DEGRADED: judge_degraded(assessment),
    }
    more = {
        SCALING: judge_scaling(assessment),
        OBJECTIVES_MET: judge_objectives(assessment),
        ROUTE_ACCEPTED: assessment.route,
        SPEC_UNDERSTOOD: judge_spec(assessment),
    }
    return verdicts | {kind: verdict for kind, verdict in more.items() if verdict is not None}


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
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(assessment.foreign, assessment.namespace))
    if assessment.asleep:
        return Verdict(
            True, Reason.SLEEPING, "nobody uses the pipeline, so it has no pods; a request to a gateway wakes it"
        )
    idle = [stage for stage in assessment.stages if not stage.wanted]
    if idle:
        return Verdict(False, Reason.SCALED_TO_ZERO, _describe_idle(assessment, idle))
    missing = [stage for stage in assessment.stages if not stage.is_ready]
    if missing or not assessment.stages:
        return _judge_missing(assessment, missing)
    if assessment.entry_problem:
        blocker = next(item for item in find_blockers(assessment) if item.reason not in _CHANGED)
        reason = blocker.reason if blocker.reason is Reason.APPLY_FAILED else Reason.ENTRY_NOT_READY
        why = f"; {blocker.message}" if reason is Reason.APPLY_FAILED else ""
        return Verdict(False, reason, f"{assessment.entry_problem}: clients cannot connect{why}")
    count = len(assessment.stages)
    return Verdict(
        True,
        Reason.ALL_STAGES_READY,
        f"all {count} stages serve" if count > 1 else f"stage {assessment.stages[0].name} serves",
    )


def _describe_idle(assessment: Assessment, idle: Sequence[StageState]) -> str:
    """Returns which stages were given no pods, and how they get some: a stage with scaling has no `replicas`."""
    fixed = [stage.name for stage in idle if not stage.scaled]
    parts = [f"{_stages(fixed)} {_have(fixed)} replicas: 0; set it to 1 or more to serve"] if fixed else []
    if scaled := [stage.name for stage in idle if stage.scaled]:
        targets = " ".join(f"omnistage/{scale_target_name(assessment.pipeline, name)}" for name in scaled)
        parts.append(
            f"{_stages(scaled)} {_have(scaled)} no pods, because the scale target says 0; let its autoscaler say 1 "
            f"or more, or: kubectl scale -n {assessment.namespace} {targets} --replicas=1"
        )
    return "; ".join(parts)


def _judge_missing(assessment: Assessment, missing: Sequence[StageState]) -> Verdict:
    names = [stage.name for stage in missing]
    worst = worst_of(missing)
    if assessment.waking and not any(stage.cause is not None and stage.cause.hard for stage in missing):
        return Verdict(
            False, Reason.WAKING, f"{_stages(names)} {_have(names)} no ready pod yet{_describe_cause(worst)}"
        )
    if worst is not None and worst.cause is not None:
        others = [name for name in names if name != worst.name]
        also = f"; {_stages(others)} {_have(others)} no ready pod either" if others else ""
        return Verdict(False, worst.cause.reason, f"stage {worst.name}: {worst.cause.message}{also}")
    if assessment.foreign:
        return Verdict(False, Reason.CHILD_CONFLICT, describe_conflicts(assessment.foreign, assessment.namespace))
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
    failures = (Reason.CHILD_CONFLICT, Reason.APPLY_FAILED, *_CHANGED)
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
    for harmless in _changes(assessment.altered):
        return Verdict(False, harmless.reason, f"nothing failed, but {harmless.message}")
    if assessment.mistakes:
        return Verdict(False, Reason.AS_EXPECTED, f"nothing failed, but {'; '.join(assessment.mistakes)}")
    return Verdict(False, Reason.AS_EXPECTED, "nothing failed")


def _judge_losses(assessment: Assessment) -> Verdict | None:
    """Returns the verdict if something is missing from a set that was complete. A set that starts has lost nothing."""
    was_complete = assessment.settled if assessment.serving == assessment.target else True
    if not was_complete or assessment.suspended or assessment.asleep or assessment.waking:
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


_PROGRESS: Final[Mapping[Phase, Reason]] = {
    Phase.STARTING: Reason.STARTING,
    Phase.UPDATING: Reason.UPDATING,
    Phase.ROLLING_OUT: Reason.ROLLING_OUT,
    Phase.NEEDS_CAPACITY: Reason.ROLLOUT_NEEDS_CAPACITY,
    Phase.WAITING: Reason.WAITING_FOR_OLD_REVISION,
    Phase.DRAINING: Reason.DRAINING_OLD_REVISION,
    Phase.SUSPENDING: Reason.SUSPENDING,
}
_CHANGED: Final = (Reason.CHANGED_BY_ADMISSION, Reason.CHANGED_BY_OTHERS)
AFTER_COMPLETION: Final = frozenset(
    {
        Reason.ROLLOUT_COMPLETE,
        Reason.CHILD_CONFLICT,
        Reason.APPLY_FAILED,
        *_CHANGED,
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
    if assessment.waking and not blockers:
        waiting = ", ".join(assessment.waiting_for)
        return Verdict(True, Reason.WAKING, f"the pipeline wakes: pods of revision {target} are starting: {waiting}")
    if phase is Phase.COMPLETE or (phase is Phase.INCOMPLETE and assessment.settled):
        if blockers:
            return Verdict(not assessment.settled, blockers[0].reason, f"revision {target}: {blockers[0].message}")
        return Verdict(False, Reason.ROLLOUT_COMPLETE, f"revision {target} is rolled out")
    if phase is Phase.INCOMPLETE:
        # The pods start for the first time, or there are more of them than before.
        reason = Reason.UPDATING if assessment.serves else Reason.STARTING
    else:
        is_switched = phase is not Phase.DRAINING or assessment.serving == target
        reason = _PROGRESS[phase] if is_switched else Reason.ROLLING_OUT
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
        case Phase.DRAINING if serving != target:
            return f"revision {target} is ready, but the Service still leads to {serving}"
        case Phase.DRAINING:
            held = "its objects are being deleted; if that lasts, see their finalizers"
            return f"revision {target} serves; the old one drains: {waiting or held}{cause}"
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


MAX_NAMED: Final = 8
"""Largest number of objects that one message names."""
_LOST: Final = re.compile(r"spec\.template\..*\b(volumes|volumeMounts|resourceClaims|claims)\b")
"""Fields of a pod that a cluster drops where it lacks their feature: pods would run without weights or devices."""
_DECISIVE: Final = re.compile(rf"spec\.(replicas|selector|ports)|metadata\.(ownerReferences|labels)|{_LOST.pattern}")
"""Fields without which the operator cannot do what the spec says. A webhook that changes another one, such as a mirror
of images, usually does so on purpose."""


class Blocker(NamedTuple):
    """A reason for which the live state does not match the spec."""

    reason: Reason
    message: str


def find_blockers(assessment: Assessment) -> list[Blocker]:
    """Returns everything that stands in the way, the most severe first."""
    blockers: list[Blocker] = []
    if assessment.foreign:
        blockers.append(Blocker(Reason.CHILD_CONFLICT, describe_conflicts(assessment.foreign, assessment.namespace)))
    if assessment.errors:
        blockers.append(Blocker(Reason.APPLY_FAILED, describe_errors(assessment.errors)))
    blockers += _changes([item for item in assessment.altered if is_decisive(item)])
    if assessment.unwritten and not assessment.errors:
        blockers.append(Blocker(Reason.UPDATING, assessment.unwritten))
    if assessment.entry_problem:
        blockers.append(Blocker(Reason.ENTRY_NOT_READY, f"{assessment.entry_problem}: clients cannot connect"))
    return blockers


def is_decisive(item: Altered) -> bool:
    """Returns whether a change keeps the operator from doing what the spec says."""
    return any(map(_DECISIVE.match, item.paths))


def _changes(items: Sequence[Altered]) -> Iterator[Blocker]:
    """Yields who changes what the operator writes, and what to check."""
    if contested := [item for item in items if item.again]:
        kind, name = contested[0].key
        yield Blocker(
            Reason.CHANGED_BY_OTHERS,
            f"another client, such as an autoscaler, changes {_fields(contested)} again after each write of the "
            f"operator, which now writes less often; kubectl get {kind.lower()} {name} -o yaml --show-managed-fields "
            "names it; point autoscalers at the OmniStage of a stage with scaling (docs/scaling.md)",
        )
    if admitted := [item for item in items if not item.again]:
        is_lost = any(_LOST.match(path) for item in admitted for path in item.paths)
        gates = "enable ImageVolume or DynamicResourceAllocation, if the cluster lacks it, or " if is_lost else ""
        yield Blocker(
            Reason.CHANGED_BY_ADMISSION,
            f"admission (a webhook or policy) changes what the operator writes: {_fields(admitted)}; {gates}see "
            "kubectl get mutatingwebhookconfigurations, and exempt objects with the label "
            f"{MANAGED_BY_LABEL}={FIELD_MANAGER}",
        )


def _fields(items: Sequence[Altered]) -> str:
    return _some([f"{item.key.kind} {item.key.name} ({', '.join(item.paths)})" for item in items])


def describe_conflicts(found: Sequence[ChildConflict], namespace: str) -> str:
    """Returns which names are taken, by whom, and the command that frees them."""
    first, more = found[0], len(found) - 1
    owner = f"belongs to {first.owner}" if first.owner else "was not made by the operator"
    others = f", and {more} more of the pipeline's names are taken" if more else ""
    named = " ".join(f"{item.key.kind.lower()}/{item.key.name}" for item in found[:MAX_NAMED])
    again = f" and so on for all {len(found)}" if len(found) > MAX_NAMED else ""
    it = "them" if more else "it"
    return (
        f"{first.key.kind} {first.key.name} {owner}{others}; the operator does not change {it}. Give the pipeline "
        f"another name, or, if nobody needs {it}: kubectl delete -n {namespace} {named}{again}"
    )


def describe_errors(errors: Sequence[ChildError]) -> str:
    """Returns which write failed, with the API server's message."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"writing {first.what}{more} failed: {' '.join(first.message.split())}; the operator retries"


def _some(parts: Sequence[str]) -> str:
    rest = len(parts) - MAX_NAMED
    return ", ".join(parts[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
