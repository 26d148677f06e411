"""Finds out why a stage lacks pods, from the reports of the scheduler, kubelet and the controllers.

If there are several pods and causes, the status reports the cause that must be fixed first. As far as possible, the
choice does not depend on the order or the names of pods.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from omni_kube.objects import Manifest, find_condition, is_terminating, parse_time, value_at
from omni_operator.names import TOKEN_VOLUME
from omni_operator.reasons import Reason
from omni_operator.state.container_causes import Cause, find_container_cause
from omni_operator.state.container_wordings import ENDS
from omni_operator.state.live import LOST_POD_SLACK, LiveStage
from omni_operator.state.wordings import REFUSALS, SCHEDULER, Wording, find_wording
from omni_proto.pipeline import GPU_RESOURCES

SLOW_SETUP: Final = timedelta(minutes=2)
"""How long a scheduler may take to notice a pod, and the setup of its volumes and network, before it is a failure."""
NODE_WAIT: Final = timedelta(minutes=15)
"""How long a pod that no more capacity would help may wait for a node, e.g. for an autoscaler's first node of a kind,
before it counts as a failure."""
_MAX_DETAIL: Final = 600

_CORRECTED_BY_HAND: Final = (
    Reason.INVALID_IMAGE_NAME,
    Reason.TOKEN_REJECTED,
    Reason.MODEL_NOT_FOUND,
    Reason.CERTIFICATE_REJECTED,
    Reason.CONFIG_REJECTED,
    Reason.MISSING_REFERENCE,
    Reason.IMAGE_PULL_BACK_OFF,
)
"""Causes that do not pass by themselves, and that no restart of a pod fixes."""

_RANKS: Final = (
    # Until the Deployment is resumed, no correction of another cause reaches its pods.
    Reason.ROLLOUT_PAUSED,
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_REFUSED,
    *_CORRECTED_BY_HAND,
    Reason.CONTAINER_NOT_STARTED,
    Reason.FETCH_FAILED,
    Reason.OOM_KILLED,
    Reason.ENGINE_DEAD,
    Reason.CRASH_LOOP_BACK_OFF,
    Reason.PROBE_FAILING,
    Reason.VOLUMES_NOT_READY,
    Reason.NODE_LOST,
    Reason.VOLUME_NOT_BOUND,
    Reason.UNSCHEDULABLE,
    Reason.EVICTED,
    Reason.PROGRESS_DEADLINE_EXCEEDED,
)
"""The order in which causes are reported: causes that only a person can fix come before transient ones."""

# The message may begin with the name of the pod that was not created, which is different at each attempt.
_FORBIDDEN: Final = re.compile(r'(?:[Pp]ods? "[^"]*" is (?:forbidden|invalid): )?(?P<why>.*)', re.DOTALL)


def find_cause(stage: LiveStage, now: datetime) -> Cause | None:
    """Returns why the stage lacks pods; None if it has all of them, or if no problem is known."""
    if stage.deployment is not None and not stage.replicas:
        return None
    cause = min(_causes(stage, now), key=_urgency, default=None)
    return replace(cause, hard=True) if cause is not None and _is_late(stage, now) else cause


def needs_correction(stage: LiveStage, now: datetime) -> bool:
    """Returns whether a pod of the stage cannot start until a person corrects the spec, or an object that it names."""
    return any(cause.reason in _CORRECTED_BY_HAND for cause in _causes(stage, now))


def next_check(stage: LiveStage, now: datetime) -> datetime | None:
    """Returns the time at which a cause may appear without an event, because a time limit passes; None if none can."""
    waits = [since for pod in stage.pods for since in (_in_setup_since(pod), _unnoticed_since(pod))]
    times = [since + SLOW_SETUP for since in waits if since is not None]
    times += [since + NODE_WAIT for pod in stage.pods if (since := _misplaced_since(pod)) is not None]
    times += [*_deadlines(stage), *(time for time in (lost_capacity_at(stage),) if time is not None)]
    return min((time for time in times if time > now), default=None)


def count_gpus(pod: Manifest) -> int:
    """Returns the number of GPUs that a pod requests."""
    limits = [value_at(container, "resources", "limits", default={}) for container in pod["spec"].get("containers", ())]
    return sum(int(limit.get(name, 0)) for limit in limits for name in GPU_RESOURCES)


def rank_of(cause: Cause) -> int:
    """Returns the rank of a cause; lower ranks are reported first."""
    return _RANKS.index(cause.reason)


def _urgency(cause: Cause) -> tuple[int, str]:
    return rank_of(cause), cause.message


def _causes(stage: LiveStage, now: datetime) -> Iterator[Cause]:
    if stage.deployment is not None and stage.paused and stage.rolling:
        metadata = stage.deployment["metadata"]
        where = f"deployment/{metadata['name']} -n {metadata.get('namespace', 'default')}"
        yield Cause(
            Reason.ROLLOUT_PAUSED,
            f"its Deployment is paused, so its pods are not replaced; run kubectl rollout resume {where}",
        )
    for message in refusals(stage):
        yield _refusal_cause(message)
    for pod in stage.pods:
        if not is_terminating(pod):
            yield from _pod_causes(pod, now)
    # Ended pods stay in the API for a long time, so they count only while replicas are missing.
    if stage.available < stage.replicas:
        yield from (cause for pod in stage.ended_pods if (cause := _ended_pod_cause(pod)) is not None)
        if _is_late(stage, now):
            yield Cause(
                Reason.PROGRESS_DEADLINE_EXCEEDED,
                "pods did not become ready within the Deployment's progress deadline; see kubectl describe pod",
            )


def _is_late(stage: LiveStage, now: datetime) -> bool:
    """Returns whether the progress deadline has passed. Then even a cause that may be transient counts as a failure."""
    progressing = stage.condition("Progressing")
    exceeded = progressing is not None and progressing.get("reason") == "ProgressDeadlineExceeded"
    return exceeded or any(time <= now for time in _deadlines(stage))


def _deadlines(stage: LiveStage) -> list[datetime]:
    """Returns when the progress deadline of each pod that is not ready passes, if the Deployment is completed.

    Kubernetes checks the deadline only until the Deployment is completed, and not when it is scaled up or loses pods.
    """
    deadline_s = value_at(stage.deployment, "spec", "progressDeadlineSeconds", default=None)
    if not stage.completed or deadline_s is None:
        return []
    since = [_unready_since(pod) for pod in stage.pods if not is_terminating(pod)]
    return [time + timedelta(seconds=deadline_s) for time in since if time is not None]


def _unready_since(pod: Manifest) -> datetime | None:
    """Returns when the pod stopped being ready, or was created; None if it is ready."""
    ready = find_condition(pod, "Ready") or {}
    if ready.get("status") == "True":
        return None
    return parse_time(str(ready.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]))


def _refusal_cause(message: str) -> Cause:
    quota = QUOTA.search(message)
    if quota is not None:
        return Cause(
            Reason.QUOTA_EXCEEDED,
            f"ResourceQuota {quota['quota']} has no capacity for {quota['requested']}; raise it, or lower resources or "
            "replicas",
        )
    match = _FORBIDDEN.fullmatch(message)
    why = match["why"] if match else message
    return Cause(
        Reason.PODS_REFUSED,
        f"the API server refuses to create pods: {_short(why)}{_remedy(find_wording(REFUSALS, why))}",
    )


def _pod_causes(pod: Manifest, now: datetime) -> Iterator[Cause]:
    message = unschedulable(pod)
    if message is not None:
        yield _scheduling_cause(pod, message, now)
        return
    unnoticed = _unnoticed_since(pod)
    if unnoticed is not None and unnoticed + SLOW_SETUP <= now:
        yield Cause(
            Reason.UNSCHEDULABLE,
            "no scheduler has taken up a pod: start the one that schedulerName names, or create what resourceClaims "
            "name; see kubectl describe pod",
        )
    spec, status = pod["spec"], pod.get("status") or {}
    found = False
    for kind, init in (("initContainer", True), ("container", False)):
        containers = {container["name"]: container for container in spec.get(f"{kind}s") or ()}
        for entry in status.get(f"{kind}Statuses") or ():
            cause = find_container_cause(containers.get(entry["name"], {}), entry, init)
            if cause is not None:
                found = True
                yield _name_secret(cause, spec)
    if found:
        return
    since = _in_setup_since(pod)
    if since is not None and since + SLOW_SETUP <= now:
        yield Cause(
            Reason.VOLUMES_NOT_READY,
            f"volumes or network of pod {pod['metadata']['name']} are not set up; kubectl describe pod shows "
            "FailedMount or FailedCreatePodSandBox",
        )
    yield from _readiness_causes(pod)


def _name_secret(cause: Cause, spec: Manifest) -> Cause:
    """Returns the cause, with the Secret of credentials that were refused."""
    volumes = [volume for volume in spec.get("volumes") or () if volume.get("name") == TOKEN_VOLUME]
    if cause.reason is not Reason.TOKEN_REJECTED or not volumes:
        return cause
    name = value_at(volumes[0], "secret", "secretName", default="")
    keys = ", ".join(item["key"] for item in value_at(volumes[0], "secret", "items", default=()))
    return replace(cause, message=f"{cause.message}; those in use are of Secret {name}, key {keys}")


def _readiness_causes(pod: Manifest) -> Iterator[Cause]:
    ready = find_condition(pod, "Ready")
    entries = value_at(pod, "status", "containerStatuses", default=())
    if ready is None or ready.get("status") == "True" or not entries:
        return
    name = pod["metadata"]["name"]
    if all(entry.get("ready") for entry in entries):
        # If kubelet sets Ready to False, it gives a reason, e.g. a readiness gate or a sidecar. The node controller
        # gives none when it does so because the node does not answer.
        if not ready.get("reason"):
            node = pod["spec"].get("nodeName", "")
            yield Cause(Reason.NODE_LOST, f"node {node} of pod {name} does not answer; repair or remove it")
        return
    for entry in entries:
        running = (entry.get("state") or {}).get("running")
        # Ready became False after the container started, so it was True before: the container is not just starting.
        if running and not entry.get("ready") and _after(ready.get("lastTransitionTime"), running.get("startedAt")):
            yield Cause(
                Reason.PROBE_FAILING,
                f"pod {name} runs but reports that it does not serve (readiness probe); see kubectl logs {name}",
            )


def _scheduling_cause(pod: Manifest, message: str, now: datetime) -> Cause:
    parts, rows = split_scheduling(message), _placement_rows(message)
    reasons = {row.reason if row else None for row in rows}
    reason = (reasons.pop() if len(reasons) == 1 else None) or Reason.UNSCHEDULABLE
    gpus = count_gpus(pod) if any(f"Insufficient {name}" in parts for name in GPU_RESOURCES) else 0
    wants = f" with {gpus} free GPU{'s' if gpus > 1 else ''}" if gpus else ""
    waits = reason is Reason.VOLUME_NOT_BOUND or any(row and row.patient for row in rows)
    since = _misplaced_since(pod)
    return Cause(
        reason,
        ("" if waits else f"no node{wants} for a pod: ") + _short(", ".join(parts)) + _remedy(*rows),
        hard=any(row and row.hard for row in rows) or (since is not None and since + NODE_WAIT <= now),
    )


def _placement_rows(message: str | None) -> list[Wording | None]:
    """Returns the meanings of the scheduler's reasons. Each is of some nodes, and only a person knows which nodes are
    meant for the pod: tainted nodes may be those of the control plane."""
    return [find_wording(SCHEDULER, part) for part in split_scheduling(message)]


def _misplaced_since(pod: Manifest) -> datetime | None:
    """Returns since when a pod fits no node for reasons that free capacity would not change; None if it does not."""
    rows = _placement_rows(unschedulable(pod))
    if is_terminating(pod) or not rows or any(row is None or row.capacity or row.patient for row in rows):
        return None
    since = (find_condition(pod, "PodScheduled") or {}).get("lastTransitionTime")
    return None if since is None else parse_time(str(since))


def _remedy(*rows: Wording | None) -> str:
    return "".join(f"; {remedy}" for remedy in dict.fromkeys(row.remedy for row in rows if row is not None))


def _ended_pod_cause(pod: Manifest) -> Cause | None:
    status = pod.get("status") or {}
    if status.get("phase") != "Failed" or not status.get("reason"):
        return None
    said = f"{status['reason']}: {_short(str(status.get('message', '')))}"
    return Cause(Reason.EVICTED, f"pods are ended by their node ({said}){_remedy(find_wording(ENDS, said))}")


def _in_setup_since(pod: Manifest) -> datetime | None:
    """Returns when a pod with a node began to wait for volumes or network; None if it does not wait."""
    setup, scheduled = find_condition(pod, "PodReadyToStartContainers"), find_condition(pod, "PodScheduled")
    if setup is None or setup.get("status") != "False" or scheduled is None or scheduled.get("status") != "True":
        return None
    since = scheduled.get("lastTransitionTime")
    return None if since is None or is_terminating(pod) else parse_time(str(since))


def _unnoticed_since(pod: Manifest) -> datetime | None:
    """Returns when a pod was created that no scheduler has reported on; None if one has."""
    is_noticed = pod["spec"].get("nodeName") or find_condition(pod, "PodScheduled") or is_terminating(pod)
    return None if is_noticed else parse_time(str(pod["metadata"]["creationTimestamp"]))


def _after(later: object, earlier: object) -> bool:
    return bool(later and earlier) and parse_time(str(later)) > parse_time(str(earlier))


def _short(text: str) -> str:
    return " ".join(text.split()).rstrip(".")[:_MAX_DETAIL]


QUOTA: Final = re.compile(r"exceeded quota: (?P<quota>[^,\s]+), requested: (?P<requested>\S+?), used:")
"""The part of a refusal that names the quota, and what a pod requested of it."""
_NODES: Final = re.compile(
    # After the reasons come those of the plugins that tried to make room: preemption, and devices since 1.31. Volcano
    # says that nodes are unavailable.
    r"\d+/\d+ nodes are (?:un)?available: (?P<why>.*?)"
    r"(?:\. (?:[^.]*, )?preemption: .*|\. (?:no new claims|still not schedulable|deallocation of)\b.*|\. not found)?"
    r"\.?\Z",
    re.DOTALL,
)
_NEXT_REASON: Final = re.compile(r", (?=\d+ )")
_NODE_COUNT: Final = re.compile(r"^\d+ ")
_TAINTED_AT: Final = re.compile(r"(?<=[:=] )\d{10}(?=\})")
"""The time in the value of an autoscaler's taint, different on each node."""
_LIMITS: Final = re.compile(r", (?=(?:maximum|minimum) \S+ usage per |\S+ max limit to request ratio )")


def lacks_capacity(stage: LiveStage) -> bool:
    """Returns whether a pod of the stage does not fit: no node has the resources, or the quota is used up."""
    if any(QUOTA.search(message) for message in refusals(stage)):
        return True
    parts = [part for pod in stage.pods if not is_terminating(pod) for part in split_scheduling(unschedulable(pod))]
    return any(row.capacity for part in parts if (row := find_wording(SCHEDULER, part)) is not None)


def lost_capacity_at(stage: LiveStage) -> datetime | None:
    """Returns when a completed stage without available pods counts as unable to regain its capacity.

    Until then, lost pods may still hold the capacity that new pods need: during their grace period and LOST_POD_SLACK.
    Returns None if the stage does not lack capacity, or if one of its pods has a node and may become available.
    """
    pods = [pod for pod in stage.pods if not is_terminating(pod)]
    idle = stage.completed and not stage.available and not any(pod["spec"].get("nodeName") for pod in pods)
    if not idle or not lacks_capacity(stage):
        return None
    since = [pod["metadata"]["creationTimestamp"] for pod in pods]
    since += [item["lastTransitionTime"] for item in _failures(stage) if "lastTransitionTime" in item]
    grace_s = value_at(stage.deployment, "spec", "template", "spec", "terminationGracePeriodSeconds", default=0)
    waits = timedelta(seconds=grace_s) + LOST_POD_SLACK
    return max((parse_time(str(time)) + waits for time in since), default=None)


def refusals(stage: LiveStage) -> list[str]:
    """Returns the API server's messages from failed attempts to create pods, without what differs at each attempt."""
    owners = [str(item["metadata"]["name"]) for item in stage.replica_sets if "name" in item.get("metadata", {})]
    return sorted({_without_attempt(str(item.get("message", "")), owners) for item in _failures(stage)})


def _without_attempt(message: str, owners: Sequence[str]) -> str:
    """Returns a refusal without the name of the pod, and with a LimitRange's complaints in one order."""
    for owner in owners:
        # The API server cuts the prefix of a generated name to 58 characters.
        prefix = f"{owner}-"[:58]
        message = re.sub(re.escape(prefix) + r"[a-z0-9]{5}\b", f"{prefix}*", message)
    head, bracket, tail = message.partition("is forbidden: [")
    if not bracket or not tail.endswith("]") or not _LIMITS.search(tail):
        return message
    return f"{head}{bracket}{', '.join(sorted(_LIMITS.split(tail[:-1])))}]"


def unschedulable(pod: Manifest) -> str | None:
    """Returns the scheduler's message about a pod that fits no node; None if the pod has a node or is not stuck."""
    condition = find_condition(pod, "PodScheduled")
    if condition is None or condition.get("status") != "False" or pod["spec"].get("nodeName"):
        return None
    return str(condition.get("message", "") or condition.get("reason", "")) if _is_stuck(condition) else None


def split_scheduling(message: str | None) -> list[str]:
    """Returns the scheduler's reasons, sorted, without the numbers of nodes, which change with the cluster."""
    if not message:
        return []
    match = _NODES.search(message)
    if match is None:
        return [message.strip().rstrip(".")]
    why = _TAINTED_AT.sub("TIME", match["why"])
    return sorted({_NODE_COUNT.sub("", part.strip()) for part in _NEXT_REASON.split(why)})


def _failures(stage: LiveStage) -> list[Mapping[str, Any]]:
    conditions = [find_condition(item, "ReplicaFailure") for item in (*stage.replica_sets, stage.deployment)]
    return [item for item in conditions if item is not None and item.get("status") == "True"]


def _is_stuck(condition: Mapping[str, Any]) -> bool:
    # SchedulerError: the pod has a node, but binding it or its volumes failed.
    return condition.get("reason") in ("Unschedulable", "SchedulingGated", "SchedulerError")
