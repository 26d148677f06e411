"""Finds what keeps the live state from matching the spec in any phase: conflicts, errors, changes by admission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from omni_operator.kinds import FIELD_MANAGER
from omni_operator.names import MANAGED_BY_LABEL
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Altered
from omni_operator.status.assessment import Assessment, ChildError

MOST_NAMED: Final = 8
"""Largest number of objects that one message names."""
_DECISIVE: Final = ("spec.replicas", "spec.selector", "spec.ports", "metadata.ownerReferences", "metadata.labels")
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
        blockers.append(Blocker(Reason.CHILD_CONFLICT, describe_conflicts(assessment)))
    if assessment.errors:
        blockers.append(Blocker(Reason.APPLY_FAILED, describe_errors(assessment.errors)))
    if decisive := [item for item in assessment.altered if is_decisive(item)]:
        blockers.append(Blocker(Reason.CHANGED_BY_ADMISSION, describe_altered(decisive)))
    if assessment.unwritten and not assessment.errors:
        blockers.append(Blocker(Reason.UPDATING, assessment.unwritten))
    if assessment.entry_problem:
        blockers.append(Blocker(Reason.ENTRY_NOT_READY, f"{assessment.entry_problem}: clients cannot connect"))
    return blockers


def is_decisive(item: Altered) -> bool:
    """Returns whether a change by admission keeps the operator from doing what the spec says."""
    return any(path.startswith(_DECISIVE) for path in item.paths)


def describe_altered(items: Sequence[Altered]) -> str:
    """Returns what admission changed, and what to check."""
    parts = [f"{item.key.kind} {item.key.name} ({', '.join(item.paths)})" for item in items]
    return (
        f"admission (a webhook or policy) changes what the operator writes: {_some(parts)}; see kubectl get "
        f"mutatingwebhookconfigurations, and exempt objects with the label {MANAGED_BY_LABEL}={FIELD_MANAGER}"
    )


def describe_conflicts(assessment: Assessment) -> str:
    """Returns which names are taken, by whom, and the command that frees them."""
    found = assessment.foreign
    first, more = found[0], len(found) - 1
    owner = f"belongs to {first.owner}" if first.owner else "was not made by the operator"
    others = f", and {more} more of the pipeline's names are taken" if more else ""
    named = " ".join(f"{item.key.kind.lower()}/{item.key.name}" for item in found[:MOST_NAMED])
    again = f" and so on for all {len(found)}" if len(found) > MOST_NAMED else ""
    it = "them" if more else "it"
    return (
        f"{first.key.kind} {first.key.name} {owner}{others}; the operator does not change {it}. Give the pipeline "
        f"another name, or, if nobody needs {it}: kubectl delete -n {assessment.namespace} {named}{again}"
    )


def describe_errors(errors: Sequence[ChildError]) -> str:
    """Returns which write failed, with the API server's message."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"writing {first.what}{more} failed: {' '.join(first.message.split())}; the operator retries"


def _some(parts: Sequence[str]) -> str:
    rest = len(parts) - MOST_NAMED
    return ", ".join(parts[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
