"""Statuses of pods and Deployments, as the kubelet, the scheduler and controllers write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from omni_operator.state.live import LiveStage

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
IMAGE = "registry.example/omni/stage:1.2"

Json = dict[str, Any]


def ago(**delta: float) -> str:
    return (NOW - timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str, **more: str) -> Json:
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": ago(minutes=1), **more}


PLACED = [condition("PodReadyToStartContainers", "True"), condition("PodScheduled", "True")]


def pod(
    containers: list[Json] | None = None,
    inits: list[Json] | None = None,
    conditions: list[Json] | None = None,
    gpus: int = 1,
    name: str = "demo-talker-1a2b3c4-6d8f7c-x2x7p",
    minutes: float = 5,
    **status: Any,
) -> Json:
    """Returns a pod of the stage `talker` that was made `minutes` ago."""
    stage = {
        "name": "stage",
        "image": IMAGE,
        "resources": {"limits": {"memory": "24Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}},
    }
    conditions = PLACED if conditions is None else conditions
    scheduled = any(item["type"] == "PodScheduled" and item["status"] == "True" for item in conditions)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "models", "creationTimestamp": ago(minutes=minutes)},
        "spec": {
            "containers": [stage],
            "initContainers": [{"name": "fetch-model", "image": IMAGE}],
            "volumes": [{"name": "hub-token", "secret": {"secretName": "hf-token", "items": [{"key": "token"}]}}],
            **({"nodeName": "gpu-1"} if scheduled else {}),
        },
        "status": {
            "phase": "Pending",
            "conditions": conditions,
            **({"containerStatuses": containers} if containers else {}),
            **({"initContainerStatuses": inits} if inits else {}),
            **status,
        },
    }


def container(
    name: str = "stage", restarts: int = 0, ready: bool = False, last: Json | None = None, **state: Any
) -> Json:
    return {
        "name": name,
        "image": IMAGE,
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }


def waiting(reason: str, message: str = "") -> Json:
    return {"reason": reason, **({"message": message} if message else {})}


def ended(code: int, message: str = "", reason: str = "Error") -> Json:
    return {
        "exitCode": code,
        "reason": reason,
        "startedAt": ago(minutes=3),
        "finishedAt": ago(minutes=2),
        "containerID": "containerd://0f0f",
        **({"message": message} if message else {}),
    }


def said(reason: str, message: str, field: str = "") -> str:
    return json.dumps({"reason": reason, "message": message, "field": field})


def backed_off(last: Json, name: str = "stage") -> Json:
    message = f"back-off 5m0s restarting failed container={name} pod=demo-talker_models(8a3f)"
    return container(name, restarts=6, last=last, waiting=waiting("CrashLoopBackOff", message))


def unscheduled(message: str, reason: str = "Unschedulable") -> list[Json]:
    return [condition("PodScheduled", "False", reason=reason, message=message)]


def deployment(
    replicas: int = 1, available: int = 0, grace_s: int = 30, deadline_s: int = 1200, **conditions: Json
) -> Json:
    return {
        "metadata": {"name": "demo-talker-1a2b3c4", "generation": 1},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": deadline_s,
            "template": {"spec": {"terminationGracePeriodSeconds": grace_s}},
        },
        "status": {
            "observedGeneration": 1,
            "availableReplicas": available,
            "conditions": [{"type": kind, **item} for kind, item in conditions.items()],
        },
    }


def stage_of(*pods: Json, ended_pods: tuple[Json, ...] = (), **options: Any) -> LiveStage:
    replica_sets = options.pop("replica_sets", ())
    return LiveStage("talker", deployment(**options), replica_sets, pods, ended_pods)


NO_GPU = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
    "2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, "
    "2 No preemption victims found for incoming pod."
)
PULL = (
    f'Back-off pulling image "{IMAGE}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack '
    f'image "{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found'
)
GATED = "Qwen/Qwen2.5-Omni-7B is gated; accept its licence and give a token that may read it"
