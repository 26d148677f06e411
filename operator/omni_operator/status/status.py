"""Computes the status of a pipeline from the observed state and the decision. The same inputs give the same status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from omni_kube.objects import find_condition, value_at
from omni_operator.desired.route import route_url
from omni_operator.names import (
    entry_selector,
    entry_service_name,
    headless_service_name,
    pipeline_url,
    serving_revision as revision_in,
    stage_name,
)
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Plan
from omni_operator.rollout.replicas import Fate, can_sleep, decide_replicas
from omni_operator.rollout.rollout import Phase, Rollout
from omni_operator.scaling.notes import ScaleNotes
from omni_operator.state.live import LiveSet, compute_live_sets, live_balancer, live_serving_revision
from omni_operator.state.observed import Observed, find_service_problem, find_stage_problem, has_endpoints, is_reachable
from omni_operator.state.pod_causes import find_cause
from omni_operator.status.assessment import Assessment, ChildError, Halt, StageState
from omni_operator.status.conditions import (
    DEGRADED,
    PROGRESSING,
    READY,
    RECONCILING,
    STALLED,
    Verdict,
    bound,
    set_conditions,
)
from omni_operator.status.verdicts import AFTER_COMPLETION, judge
from omni_proto.pipeline import OmniPipeline
from omni_proto.pipeline.rules.component_checks import list_likely_mistakes
from omni_proto.pod_contract import GRPC_PORT

_NEEDS_AN_EDIT: Final = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.TOO_MANY_PIPELINES,
        Reason.CHILD_CONFLICT,
        Reason.INVALID_IMAGE_NAME,
        Reason.MODEL_NOT_FOUND,
        Reason.TOKEN_REJECTED,
        Reason.CONFIG_REJECTED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.ROLLOUT_PAUSED,
    }
)
"""Reasons of Degraded=True that waiting does not remove. Others may pass, such as a full cluster."""


def judge_kstatus(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Returns the verdict on Stalled or on Reconciling, whichever is True; empty if what runs matches the spec.

    Tools that know no OmniPipeline, such as Flux and `helm --wait`, read these of any resource. Their library, kstatus
    of sigs.k8s.io/cli-utils, takes a resource for done if neither is True, Ready is not False, and
    status.observedGeneration is the current one. Each is written only while it is True, and at most one of them.
    """
    degraded, progressing = verdicts[DEGRADED], verdicts[PROGRESSING]
    if degraded.holds and degraded.reason in _NEEDS_AN_EDIT:
        return {STALLED: degraded}
    if progressing.holds:
        return {RECONCILING: progressing}
    return {}


Status = dict[str, Any]

MAX_IGNORED = 20
"""Largest number of unknown fields that the status names."""


def compute_status(
    pipeline: OmniPipeline,
    observed: Observed,
    rollout: Rollout,
    plan: Plan,
    now: datetime,
    errors: Sequence[ChildError] = (),
    *,
    ignored: Sequence[str] = (),
    halt: Halt | None = None,
    scale: ScaleNotes | None = None,
    route: Verdict | None = None,
) -> Status:
    """Returns the whole status to write. It equals the live status if nothing has changed.

    pipeline has the spec that is in force. ignored: unknown fields of the live spec. halt: why the live spec is not in
    force. scale: what scaling found out. route: the verdict on the route.
    """
    assessed = assess(pipeline, observed, rollout, plan, now, errors, ignored=ignored, halt=halt)
    assessment = replace(assessed, scale=scale, route=route)
    url = pipeline_url(observed.name, observed.namespace, tls=rollout.serving_tls)
    return _build(assessment, observed, url, now, route_url(pipeline.spec.entry.route))


def compute_lost_status(observed: Observed, halt: Halt, now: datetime) -> Status:
    """Returns the status of a pipeline without reading a spec: what serves is judged by what is there."""
    serving = live_serving_revision(observed) or ""
    live = compute_live_sets(observed, now).get(serving) or LiveSet(serving)
    wanted = {name: replicas for name, replicas in decide_replicas(None, live, Fate.RUN).goal.items() if replicas}
    stages = [_stage_state(name, replicas, live, observed, now) for name, replicas in wanted.items()]
    assessment = Assessment(
        pipeline=observed.name,
        namespace=observed.namespace,
        suspended=False,
        phase=Phase.INCOMPLETE,
        serving=serving,
        target=serving,
        stages=stages,
        entry_problem=_find_entry_problem(observed, {serving: stages}),
        halt=halt,
    )
    url = value_at(observed.pipeline, "status", "url", default="") or pipeline_url(observed.name, observed.namespace)
    return _build(assessment, observed, url, now)


def refuse_spec(problem: str) -> Halt:
    """Returns why a spec is not in force that is invalid, no longer valid, or of another version."""
    return Halt(
        Reason.INVALID_SPEC,
        f"the spec is not valid for this operator: {' '.join(problem.split())}; until it is corrected, or the operator "
        "upgraded, the operator keeps to the last spec that it accepted",
    )


def refuse_excess(limit: int) -> Halt:
    """Returns why the operator does nothing for a pipeline that is beyond its namespace's limit."""
    return Halt(
        Reason.TOO_MANY_PIPELINES,
        f"the namespace has more than {limit} pipelines and this is not among the {limit} oldest: the operator creates "
        "and changes nothing for it; delete others, or raise the operator's --max-pipelines",
    )


def describe_deletion(observed: Observed) -> Halt:
    """Returns why the operator does nothing for a pipeline that is being deleted."""
    finalizers = ", ".join(str(item) for item in observed.pipeline["metadata"].get("finalizers") or ())
    return Halt(
        Reason.TERMINATING,
        "the pipeline is being deleted, and the operator changes nothing any more; it is gone once its finalizers are "
        f"removed: {finalizers or 'none is left'}",
    )


def _build(assessment: Assessment, observed: Observed, url: str, now: datetime, route: str = "") -> Status:
    previous = observed.pipeline.get("status") or {}
    ready = sum(stage.is_ready for stage in assessment.stages)
    verdicts = judge(assessment)
    verdicts |= judge_kstatus(verdicts)
    return {
        "observedGeneration": observed.generation,
        "conditions": set_conditions(previous.get("conditions", ()), verdicts, observed.generation, now),
        "readyStages": f"{ready}/{len(assessment.stages)}",
        "stages": [_stage_entry(stage, observed, assessment.scale) for stage in assessment.stages],
        "url": url,
        **({"routeUrl": route} if route else {}),
    }


def assess(
    pipeline: OmniPipeline,
    observed: Observed,
    rollout: Rollout,
    plan: Plan,
    now: datetime,
    errors: Sequence[ChildError] = (),
    *,
    ignored: Sequence[str] = (),
    halt: Halt | None = None,
) -> Assessment:
    """Returns the assessment from which the conditions are derived."""
    states: dict[str, list[StageState]] = {}
    scaled = {stage.name for stage in pipeline.spec.stages if stage.scaling is not None}
    for revision, goal in rollout.goals.items():
        live = rollout.sets.get(revision) or LiveSet(revision)
        models = rollout.models.get(revision, {})
        states[revision] = [
            _stage_state(name, replicas, live, observed, now, models.get(name, ""), scaled=name in scaled)
            for name, replicas in goal.items()
        ]
    serving = rollout.serving
    if rollout.selected in states and _all_ready(states[rollout.selected]):
        # Until the switch is written, clients reach the set that the entry Service selects.
        serving = rollout.selected
    named = [*ignored[:MAX_IGNORED], *([f"and {len(ignored) - MAX_IGNORED} more"] if ignored[MAX_IGNORED:] else [])]
    slept = (find_condition(observed.pipeline, READY) or {}).get("reason") in (Reason.SLEEPING, Reason.WAKING)
    return Assessment(
        pipeline=observed.name,
        namespace=observed.namespace,
        suspended=pipeline.spec.suspend,
        asleep=rollout.asleep and not pipeline.spec.suspend,
        waking=slept and can_sleep(pipeline) and not rollout.asleep and not _all_ready(states[serving]),
        phase=rollout.phase,
        serving=serving,
        target=rollout.target,
        stages=states[serving],
        rising=states[rollout.target] if rollout.target != serving else (),
        ending=[stage for other in rollout.sets if other not in (serving, rollout.target) for stage in states[other]],
        waiting_for=rollout.waiting_for,
        entry_problem=_find_entry_problem(observed, {serving: states[serving], **states}),
        conflicts=plan.conflicts,
        errors=errors,
        altered=plan.altered,
        unwritten=_describe_unwritten(plan),
        ignored=named,
        mistakes=[*map(str, list_likely_mistakes(pipeline)), *_describe_balancer(pipeline, observed)],
        halt=halt,
        settled=_was_complete(observed),
    )


def _describe_balancer(pipeline: OmniPipeline, observed: Observed) -> Iterator[str]:
    """Yields that a load balancer keeps its class, if the spec names another one."""
    service, live = pipeline.spec.entry.service, live_balancer(observed)
    if service.type == "LoadBalancer" and live is not None and service.load_balancer_class not in (None, live):
        yield (
            f"spec.entry.service.loadBalancerClass: the load balancer of Service {entry_service_name(observed.name)} "
            f"keeps {live or 'the default class'}, because Kubernetes lets nobody change the class; to replace the "
            "load balancer, set type: ClusterIP, wait until its address is gone, and set type: LoadBalancer again"
        )


def _stage_state(
    name: str, wanted: int, live: LiveSet, observed: Observed, now: datetime, model: str = "", *, scaled: bool = False
) -> StageState:
    stage = live.stage(name)
    return StageState(
        name=name,
        revision=live.revision,
        wanted=wanted,
        available=stage.available,
        ready_replicas=stage.ready,
        reachable=is_reachable(observed, name, live.revision),
        cause=find_cause(stage, now),
        problem=find_stage_problem(observed, name, live.revision),
        model=model,
        scaled=scaled,
    )


def _find_entry_problem(observed: Observed, states: Mapping[str, Sequence[StageState]]) -> str:
    """Returns why clients cannot connect through the stable Services; empty if they can.

    states begins with the serving revision. If that one is not ready, the problem is reported by its stages. Each
    Service may lead to any revision that is ready: in a switch one of them is written before the other.
    """
    serving = next(iter(states))
    if not _all_ready(states[serving]):
        return ""
    for name in (entry_service_name(observed.name), headless_service_name(observed.name)):
        selected = revision_in(value_at(observed.child("Service", name), "spec", "selector", default={}))
        revision = selected if selected is not None and _all_ready(states.get(selected, ())) else serving
        if problem := find_service_problem(observed, name, entry_selector(observed.name, revision)):
            return problem
        if not has_endpoints(observed, name):
            return f"Service {name} has no ready endpoint"
    return ""


def _all_ready(stages: Sequence[StageState]) -> bool:
    return bool(stages) and all(stage.is_ready for stage in stages)


def _describe_unwritten(plan: Plan) -> str:
    if plan.waiting:
        kind, name = plan.waiting[0]
        return f"{kind} {name} is being deleted, and is made again once it is gone"
    leftovers = [item.key for item in plan.conflicts if item.leftover]
    if leftovers:
        return f"{leftovers[0].kind} {leftovers[0].name} of a deleted pipeline of this name is removed first"
    return "" if plan.is_empty else "not all objects are written yet"


def _stage_entry(stage: StageState, observed: Observed, scale: ScaleNotes | None) -> dict[str, Any]:
    note = scale.stages.get(stage.name) if scale is not None else None
    service = stage_name(observed.name, stage.name, stage.revision)
    message = stage.cause.message if stage.cause is not None else stage.problem if stage.is_unreachable else ""
    return {
        "name": stage.name,
        "replicas": stage.wanted,
        "readyReplicas": stage.ready_replicas,
        "revision": stage.revision,
        "endpoint": f"{service}.{observed.namespace}.svc:{GRPC_PORT}",
        "message": bound(message),
        **({"model": stage.model} if stage.model else {}),
        **({"scaling": bound(note.why)} if note is not None and note.why else {}),
        **({"desiredReplicas": note.desired} if note is not None and note.desired is not None else {}),
    }


def _was_complete(observed: Observed) -> bool:
    """Returns whether the live status already reports that this generation is rolled out."""
    condition: Mapping[str, Any] = find_condition(observed.pipeline, PROGRESSING) or {}
    return (
        condition.get("status") == "False"
        and condition.get("reason") in AFTER_COMPLETION
        and condition.get("observedGeneration") == observed.generation
    )
