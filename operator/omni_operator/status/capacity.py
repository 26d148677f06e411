"""Derives the conditions Scaling and ObjectivesMet from what scaling found out."""

from __future__ import annotations

from omni_operator.reasons import Reason
from omni_operator.status.assessment import Assessment
from omni_operator.status.conditions import Verdict


def judge_scaling(assessment: Assessment) -> Verdict | None:
    """Returns the verdict on Scaling: whether the stages with scaling have the pods that their load needs. None without
    such a stage, and while nothing was decided."""
    notes = assessment.scale.stages if assessment.scale is not None else {}
    if not notes or assessment.suspended or assessment.halt is not None:
        return None
    if assessment.asleep or assessment.waking:
        return Verdict(True, Reason.FOLLOWS_LOAD, "the pipeline sleeps" if assessment.asleep else "the pipeline wakes")
    for name, note in notes.items():
        if note.blocked:
            return Verdict(
                False,
                Reason.SCALING_NEEDS_CAPACITY,
                f"stage {name} needs {note.desired} pods, but more do not start: {note.blocked}; no further pods are "
                "asked for until they do",
            )
    for name, note in notes.items():
        if note.limited:
            return Verdict(
                False,
                Reason.SCALING_LIMITED,
                f"stage {name} needs {note.desired} pods, and maxReplicas is {note.replicas}; raise it, or accept that "
                "requests wait",
            )
    unknown = [name for name, note in notes.items() if note.desired is None and not note.external]
    if unknown:
        starting = {stage.name for stage in assessment.stages if not stage.is_ready}
        remedy = (
            "that needs ready pods, see Ready"
            if starting.issuperset(unknown)
            else "if this lasts, check that no NetworkPolicy keeps it from their port 9090"
        )
        return Verdict(
            False,
            Reason.LOAD_UNKNOWN,
            f"the load of {', '.join(unknown)} is not known yet, so the number of pods stays; the operator reads the "
            f"pods' metrics every 15 s: {remedy}",
        )
    said = ", ".join(
        f"{name} {note.replicas}" + (" (set from outside)" if note.external else "") for name, note in notes.items()
    )
    return Verdict(True, Reason.FOLLOWS_LOAD, f"pods: {said}")


def judge_objectives(assessment: Assessment) -> Verdict | None:
    """Returns the verdict on ObjectivesMet: whether clients get what spec.objectives promises. None without objectives,
    and until there are answers to judge."""
    note = assessment.scale.objectives if assessment.scale is not None else None
    if note is None or not note.findings or assessment.suspended or assessment.halt is not None:
        return None
    missed = [finding for finding in note.findings if finding.is_missed]
    if not missed:
        return Verdict(True, Reason.OBJECTIVES_KEPT, "all objectives that can be judged are kept")
    where = f"; stage {note.holds_back} holds it back: it has most requests for its pods" if note.holds_back else ""
    remedy = ""
    if note.holds_back and note.holds_back not in (assessment.scale.stages if assessment.scale is not None else {}):
        remedy = "; raise its replicas, or give it scaling"
    return Verdict(False, Reason.OBJECTIVES_MISSED, f"{'; '.join(map(str, missed))}{where}{remedy}")
