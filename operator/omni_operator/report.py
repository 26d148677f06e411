"""What one reconcile reports: its result, what the status says about failed writes, and when it is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from omni_kube.errors import DeniedError, RetryClass
from omni_operator.rollout.apply import Outcome
from omni_operator.rollout.decide import Decision
from omni_operator.rollout.plan import Plan
from omni_operator.status.assessment import ChildError

CONFLICT_RECHECK_S: Final = 30.0
"""Pause before checking whether another object still has a child's name: no watch reports that object's deletion."""
ALTERED_RECHECK_S: Final = 60.0
"""Pause before a child that admission changed is applied again: no watch reports that a webhook or policy is gone."""
ROUTE_RECHECK_S: Final = 30.0
"""Pause before a refused route is written again: no watch reports that a right or a policy has changed."""
REPORTED_FAILURES: Final = 4
"""Consecutive failures after which the status reports even transient errors."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a reconcile."""

    result: str
    """unchanged, changed, conflict, refused (the pipeline, by the operator), denied (an object, by a quota or policy),
    error or gone."""
    retry: bool = False
    """Whether it failed and must be retried with growing pauses."""
    again_after_s: float | None = None
    """Seconds after which to reconcile again even if no event arrives; with retry, the shortest pause."""
    progressed: bool = False
    """With retry: whether some of its writes succeeded."""


def describe_failure(outcome: Outcome, failures: int) -> list[ChildError]:
    """Returns what the status reports about a failed write: a refusal immediately, other errors only if they last."""
    error = outcome.error
    if error is None or error.retry is RetryClass.NEVER:
        return []
    if error.retry is not RetryClass.SLOWLY and failures < REPORTED_FAILURES:
        return []
    return [ChildError(outcome.failed, error.message)]


def result_of(plan: Plan, outcome: Outcome) -> str:
    """Returns the result of a reconcile that executed the plan; see Report.result."""
    if outcome.error is not None:
        return "denied" if isinstance(outcome.error, DeniedError) else "error"
    if plan.conflicts:
        return "conflict"
    return "changed" if outcome.writes else "unchanged"


def schedule(report: Report, decision: Decision, outcome: Outcome, now: datetime, *, route_waits: bool) -> Report:
    """Returns the report with the time of the next reconcile. route_waits: whether the route cannot be written now."""
    error = outcome.error
    if error is not None:
        return Report(report.result, error.retry is not RetryClass.NEVER, error.retry_after_s, outcome.writes > 0)
    pauses = [report.again_after_s] if report.again_after_s is not None else []
    if decision.plan.conflicts or decision.route.conflicts:
        pauses.append(CONFLICT_RECHECK_S)
    if decision.plan.altered:
        pauses.append(ALTERED_RECHECK_S)
    if route_waits:
        pauses.append(ROUTE_RECHECK_S)
    if decision.rollout.recheck_at is not None:
        pauses.append(max(1.0, (decision.rollout.recheck_at - now).total_seconds() + 1.0))
    return Report(report.result, again_after_s=min(pauses, default=None))
