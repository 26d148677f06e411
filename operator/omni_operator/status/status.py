"""Computes the status of a pipeline from the observed state and the decision. The same inputs give the same status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from omni_kube.objects import find_condition
from omni_operator.names import pipeline_url, stage_name
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Plan
from omni_operator.rollout.rollout import Rollout
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_operator.state.pod_causes import find_cause
from omni_operator.status.conditions import DEGRADED, PROGRESSING, READY, Verdict, bound, set_conditions
from omni_operator.status.verdicts import Assessment, ChildError, StageState, judge
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import GRPC_PORT

Status = dict[str, Any]


def compute_status(
    pipeline: OmniPipeline,
    observed: Observed,
    rollout: Rollout,
    plan: Plan,
    now: datetime,
    errors: Sequence[ChildError] = (),
) -> Status:
    """Returns the whole status to write. It equals the live status if nothing has changed."""
    assessment = assess(pipeline, observed, rollout, plan, now, errors)
    previous = observed.pipeline.get("status") or {}
    ready = sum(stage.is_ready for stage in assessment.stages)
    return {
        "observedGeneration": observed.generation,
        "conditions": set_conditions(previous.get("conditions", ()), judge(assessment), observed.generation, now),
        "readyStages": f"{ready}/{len(assessment.stages)}",
        "stages": [_stage_entry(stage, observed) for stage in assessment.stages],
        "url": pipeline_url(observed.name, observed.namespace, tls=rollout.serving_tls),
    }


def compute_invalid_status(observed: Observed, problem: str, now: datetime) -> Status:
    """Returns the status of a pipeline whose spec is invalid or no longer valid. Its children are not changed."""
    message = f"the spec is not valid: {' '.join(problem.split())}; until it is corrected, the operator changes nothing"
    return _compute_refused_status(observed, Reason.INVALID_SPEC, message, now)


def compute_too_many_status(observed: Observed, limit: int, now: datetime) -> Status:
    """Returns the status of a pipeline that is beyond its namespace's limit."""
    message = (
        f"the namespace has more than {limit} pipelines and this is not among the {limit} oldest: the operator creates "
        "and changes nothing for it; delete others, or raise the operator's --max-pipelines"
    )
    return _compute_refused_status(observed, Reason.TOO_MANY_PIPELINES, message, now)


def _compute_refused_status(observed: Observed, reason: Reason, message: str, now: datetime) -> Status:
    previous = observed.pipeline.get("status") or {}
    verdicts = {kind: Verdict(kind == DEGRADED, reason, message) for kind in (READY, PROGRESSING, DEGRADED)}
    return {
        **previous,
        "observedGeneration": observed.generation,
        "conditions": set_conditions(previous.get("conditions", ()), verdicts, observed.generation, now),
        "url": previous.get("url") or pipeline_url(observed.name, observed.namespace),
    }


def assess(
    pipeline: OmniPipeline,
    observed: Observed,
    rollout: Rollout,
    plan: Plan,
    now: datetime,
    errors: Sequence[ChildError] = (),
) -> Assessment:
    """Returns the assessment from which the conditions are derived."""

    def states(revision: str) -> list[StageState]:
        live = rollout.sets.get(revision) or LiveSet(revision)
        goal = rollout.goals[revision]
        return [_stage_state(name, replicas, live, observed, now) for name, replicas in goal.items()]

    return Assessment(
        pipeline=observed.name,
        suspended=pipeline.spec.suspend,
        phase=rollout.phase,
        serving=rollout.serving,
        target=rollout.target,
        stages=states(rollout.serving),
        rising=states(rollout.target) if rollout.target != rollout.serving else (),
        waiting_for=rollout.waiting_for,
        conflicts=plan.conflicts,
        errors=errors,
        settled=_was_complete(observed),
    )


def _stage_state(name: str, wanted: int, live: LiveSet, observed: Observed, now: datetime) -> StageState:
    stage = live.stage(name)
    return StageState(
        name=name,
        revision=live.revision,
        wanted=wanted,
        available=stage.available,
        ready_replicas=stage.ready,
        reachable=observed.endpoints.get(stage_name(observed.name, name, live.revision), 0) > 0,
        cause=find_cause(stage, now),
    )


def _stage_entry(stage: StageState, observed: Observed) -> dict[str, Any]:
    service = stage_name(observed.name, stage.name, stage.revision)
    return {
        "name": stage.name,
        "replicas": stage.wanted,
        "readyReplicas": stage.ready_replicas,
        "revision": stage.revision,
        "endpoint": f"{service}.{observed.namespace}.svc:{GRPC_PORT}",
        "message": bound(stage.cause.message) if stage.cause is not None else "",
    }


def _was_complete(observed: Observed) -> bool:
    """Returns whether the live status already reports that this generation is rolled out."""
    condition: Mapping[str, Any] = find_condition(observed.pipeline, PROGRESSING) or {}
    return (
        condition.get("status") == "False"
        and condition.get("reason") == Reason.ROLLOUT_COMPLETE
        and condition.get("observedGeneration") == observed.generation
    )
