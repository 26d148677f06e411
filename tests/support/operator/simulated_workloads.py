"""The controllers, scheduler and kubelet of the simulated cluster. Each method named in STEPS is one small step."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta

from omni_kube.objects import Manifest
from support.operator.simulated_api import SimulatedApi, format_time, is_ready, owner_of, set_ready

GRACE = timedelta(seconds=330)
BAD_IMAGE = "broken:1"
"""Pods with this image never become ready."""


@dataclass
class SimulatedWorkloads(SimulatedApi):
    """The steps of all components except the operator. Each method in STEPS returns whether it changed anything."""

    capacity: int | None = None
    """Number of pods that fit on the node; None: unlimited."""

    STEPS = ("run_deployments", "run_replica_sets", "collect_garbage", "schedule", "start_pods", "end_pods")

    def run_deployments(self) -> bool:
        """Advances each Deployment by one step. Returns whether anything changed."""
        deployments = [child for key, child in self.children.items() if key.kind == "Deployment"]
        return sum(self._run_deployment(child) for child in deployments) > 0

    def _run_deployment(self, deployment: Manifest) -> bool:
        metadata, spec = deployment["metadata"], deployment["spec"]
        before = copy.deepcopy(deployment.get("status"))
        template = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:8]
        owned = [
            item
            for item in self.replica_sets.values()
            if item["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"]
        ]
        current = next((item for item in owned if item["metadata"]["labels"]["pod-template-hash"] == template), None)
        changed = current is None
        if current is None:
            current = self._make_replica_set(deployment, template)
            owned.append(current)
        old = [item for item in owned if item is not current]
        rolled = _roll(spec, current, old)
        total = sum(_count(item, "replicas") for item in owned)
        updated, available = _count(current, "replicas"), sum(_count(item, "availableReplicas") for item in owned)
        complete = updated == total == spec["replicas"] and available >= spec["replicas"]
        conditions = (before or {}).get("conditions") or [{}]
        was = conditions[0].get("reason")
        same_template = (before or {}).get("_template") == template
        settled = complete or (was == "NewReplicaSetAvailable" and same_template)
        deployment["status"] = {
            "observedGeneration": metadata["generation"],
            "replicas": total,
            "updatedReplicas": updated,
            "readyReplicas": available,
            "availableReplicas": available,
            "conditions": [
                {
                    "type": "Progressing",
                    "status": "True",
                    "reason": "NewReplicaSetAvailable" if settled else "ReplicaSetUpdated",
                }
            ],
            "_template": template,
        }
        if deployment["status"] != before:
            metadata["resourceVersion"] = str(self.next_id())
        return changed or rolled or deployment["status"] != before

    def _make_replica_set(self, deployment: Manifest, template: str) -> Manifest:
        metadata, spec = deployment["metadata"], copy.deepcopy(deployment["spec"])
        labels = {**spec["template"]["metadata"]["labels"], "pod-template-hash": template}
        name = f"{metadata['name']}-{template}"
        if name in self.replica_sets:  # from a deleted Deployment of the same name, not garbage-collected yet
            name = f"{name}-{self.next_id()}"
        replica_set = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": name,
                "uid": f"uid-{self.next_id()}",
                "generation": 1,
                "labels": labels,
                "ownerReferences": [
                    {"kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
                ],
            },
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {**spec["selector"]["matchLabels"]}},
                "template": spec["template"],
            },
        }
        self.replica_sets[name] = replica_set
        return replica_set

    def run_replica_sets(self) -> bool:
        """Makes each ReplicaSet create missing pods and terminate surplus ones. Returns whether anything changed."""
        return sum(self._run_replica_set(item) for item in list(self.replica_sets.values())) > 0

    def _run_replica_set(self, replica_set: Manifest) -> bool:
        pods = self._pods_of(replica_set)
        excess = len(pods) - replica_set["spec"]["replicas"]
        for pod in sorted(pods, key=is_ready)[: max(excess, 0)]:
            self.terminate(pod)
        for _ in range(max(-excess, 0)):
            self._make_pod(replica_set)
        pods = self._pods_of(replica_set)
        before = replica_set.get("status")
        replica_set["status"] = {
            "observedGeneration": replica_set["metadata"]["generation"],
            "replicas": len(pods),
            "availableReplicas": sum(is_ready(pod) for pod in pods),
        }
        return replica_set["status"] != before

    def _pods_of(self, replica_set: Manifest) -> list[Manifest]:
        uid = replica_set["metadata"]["uid"]
        return [
            pod for pod in self.pods.values() if owner_of(pod) == uid and "deletionTimestamp" not in pod["metadata"]
        ]

    def _make_pod(self, replica_set: Manifest) -> None:
        template = copy.deepcopy(replica_set["spec"]["template"])
        number = self.next_id()
        name = f"{replica_set['metadata']['name']}-{number:05d}"
        owner = {
            "kind": "ReplicaSet",
            "name": replica_set["metadata"]["name"],
            "uid": replica_set["metadata"]["uid"],
            "controller": True,
        }
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "uid": f"uid-{number}",
                "creationTimestamp": format_time(self.now),
                "labels": {**template["metadata"]["labels"], "pod-template-hash": name.rsplit("-", 2)[1]},
                "ownerReferences": [{"kind": "ReplicaSet", "controller": True, **owner}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }

    def terminate(self, pod: Manifest) -> None:
        """Begins a pod's termination. A pod without a node is removed immediately."""
        if "nodeName" not in pod["spec"]:
            self.pods.pop(pod["metadata"]["name"], None)
            return
        pod["metadata"].setdefault("deletionTimestamp", format_time(self.now + GRACE))
        set_ready(pod, False)

    def collect_garbage(self) -> bool:
        """Removes ReplicaSets and terminates pods whose owner is gone. Returns whether anything changed."""
        deployments = {child["metadata"]["uid"] for key, child in self.children.items() if key.kind == "Deployment"}
        orphans = [name for name, item in self.replica_sets.items() if owner_of(item) not in deployments]
        for name in orphans:
            del self.replica_sets[name]
        owners = {item["metadata"]["uid"] for item in self.replica_sets.values()}
        lost = [
            pod
            for pod in list(self.pods.values())
            if owner_of(pod) not in owners and "deletionTimestamp" not in pod["metadata"]
        ]
        for pod in lost:
            self.terminate(pod)
        return bool(orphans or lost)

    def schedule(self) -> bool:
        """Binds pods up to the capacity, and marks the others Unschedulable. Returns whether anything changed."""
        changed = False
        for pod in list(self.pods.values()):
            if "nodeName" in pod["spec"]:
                continue
            room = (
                self.capacity is None or sum("nodeName" in item["spec"] for item in self.pods.values()) < self.capacity
            )
            if room:
                pod["spec"]["nodeName"] = "node"
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
                changed = True
            elif not pod["status"]["conditions"]:
                message = (
                    "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: ..."
                )
                pod["status"]["conditions"] = [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
                ]
                changed = True
        return changed

    def start_pods(self) -> bool:
        """Makes one more bound pod of each ReplicaSet ready. A pod with BAD_IMAGE fails to pull the image instead."""
        changed = False
        begun: set[str] = set()
        for pod in self.pods.values():
            if (
                owner_of(pod) in begun
                or "nodeName" not in pod["spec"]
                or "deletionTimestamp" in pod["metadata"]
                or is_ready(pod)
            ):
                continue
            container = pod["spec"]["containers"][0]
            if container["image"] != BAD_IMAGE:
                set_ready(pod, True)
                begun.add(owner_of(pod))
                changed = True
            elif "containerStatuses" not in pod["status"]:
                waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{BAD_IMAGE}"'}
                pod["status"]["containerStatuses"] = [
                    {"name": container["name"], "ready": False, "restartCount": 0, "state": {"waiting": waiting}}
                ]
                changed = True
        return changed

    def end_pods(self) -> bool:
        """Removes terminating pods, as if they had drained. Returns whether there were any."""
        ended = [name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]]
        for name in ended:
            del self.pods[name]
        return bool(ended)


def _count(replica_set: Manifest, name: str) -> int:
    return int(replica_set.get("status", {}).get(name, 0))


def _roll(spec: Manifest, current: Manifest, old: list[Manifest]) -> bool:
    """Makes the next step of a rolling update, as the Deployment controller does. Returns whether anything changed."""
    before = [item["spec"]["replicas"] for item in (current, *old)]
    wanted, rolling = spec["replicas"], spec["strategy"]["rollingUpdate"]
    surge, unavailable = rolling["maxSurge"], rolling["maxUnavailable"]
    total = sum(before)
    if before[0] > wanted:
        current["spec"]["replicas"] = wanted
    elif total < wanted + surge:
        current["spec"]["replicas"] = min(wanted, before[0] + wanted + surge - total) if old else wanted
    total = sum(item["spec"]["replicas"] for item in (current, *old))
    missing = current["spec"]["replicas"] - _count(current, "availableReplicas")
    room = total - (wanted - unavailable) - max(missing, 0)
    for item in old:  # scale down unavailable pods first
        broken = item["spec"]["replicas"] - _count(item, "availableReplicas")
        cut = max(0, min(broken, room))
        item["spec"]["replicas"] -= cut
        room -= cut
    for item in old:
        cut = max(0, min(item["spec"]["replicas"], room))
        item["spec"]["replicas"] -= cut
        room -= cut
    changed = False
    for item, was in zip((current, *old), before, strict=True):
        if item["spec"]["replicas"] != was:
            item["metadata"]["generation"] += 1
            changed = True
    return changed
