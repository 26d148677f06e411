"""Changes the status of running pods as a kubelet would. kwok does not change pods that run."""

from __future__ import annotations

import datetime
from typing import Any

from support.controlplane.server.api import Api, Manifest


def set_ready(api: Api, pod: Manifest, *, ready: bool = True) -> None:
    """Makes a pod Ready, or not Ready as if its readiness probe failed."""
    statuses = [{"name": c["name"], "ready": ready, "started": True, "state": _running()} for c in _containers(pod)]
    _patch(api, pod, statuses, ready=ready)


def crash(api: Api, pod: Manifest, message: str = "", *, exit_code: int = 1) -> None:
    """Puts a pod's containers into CrashLoopBackOff, with `message` as their termination message."""
    terminated = {"exitCode": exit_code, "reason": "Error", "startedAt": _now(), "finishedAt": _now()}
    terminated |= {"message": message} if message else {}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 1m20s restarting failed container"}
    statuses = [
        {
            "name": container["name"],
            "ready": False,
            "started": False,
            "restartCount": 5,
            "state": {"waiting": waiting},
            "lastState": {"terminated": terminated},
        }
        for container in _containers(pod)
    ]
    _patch(api, pod, statuses, ready=False)


def _patch(api: Api, pod: Manifest, statuses: list[Manifest], *, ready: bool) -> None:
    old = {status["name"]: status for status in pod["status"].get("containerStatuses", [])}
    merged = [{"image": "", "imageID": "", "restartCount": 0, **old.get(s["name"], {}), **s} for s in statuses]
    conditions = [c for c in pod["status"].get("conditions", []) if c["type"] not in ("Ready", "ContainersReady")]
    reason: dict[str, Any] = {} if ready else {"reason": "ContainersNotReady"}
    conditions += [
        {"type": kind, "status": str(ready), "lastTransitionTime": _now(), **reason}
        for kind in ("ContainersReady", "Ready")
    ]
    change = {"status": {"phase": "Running", "containerStatuses": merged, "conditions": conditions}}
    api.in_namespace(pod["metadata"]["namespace"]).patch("Pod", pod["metadata"]["name"], change, subresource="status")


def _containers(pod: Manifest) -> list[Manifest]:
    containers: list[Manifest] = pod["spec"]["containers"]
    return containers


def _running() -> Manifest:
    return {"running": {"startedAt": _now()}}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
