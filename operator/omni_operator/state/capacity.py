"""Finds out whether a stage lacks capacity: pods that fit on no node, and pods that a quota does not admit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from omni_kube.objects import Manifest, find_condition, is_terminating, parse_time, value_at
from omni_operator.state.live import LOST_POD_SLACK, LiveStage
from omni_operator.state.wordings import SCHEDULER, find_wording

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
    return condition.get("reason") in ("Unschedulable", "SchedulingGated")
