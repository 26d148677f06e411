"""A small cluster in memory: enough of the API server, the Deployment and ReplicaSet controllers, the garbage
collector, the scheduler and kubelet to drive the operator's decisions through whole rollouts.

Every transition is one small step that a test may put anywhere. Objects have the form in which the real ones write
them, as far as decisions read it. What the real ones do is held against this by the tests on a real control plane.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from omni_kube.objects import Manifest, controller_uid
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.decide import Decision, decide, parse_live_pipeline
from omni_operator.rollout.plan import Prune
from omni_operator.state.observed import Observed
from omni_operator.state.slim import slim_seen
from omni_operator.status.events import EventData, compute_events
from omni_operator.status.status import compute_status
from omni_proto.pipeline.types.status import PipelineStatus
from omni_proto.pod_contract import REVISION_LABEL, STAGE_LABEL

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GRACE = timedelta(seconds=330)
BAD_IMAGE = "broken:1"
"""Pods with it never become ready."""


def format_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class SimulatedCluster:
    """The state of the API, and the steps of everybody but the operator."""

    pipeline: Manifest
    capacity: int | None = None
    """Pods that fit; None: any number."""
    now: datetime = START
    children: dict[ChildKey, Manifest] = field(default_factory=dict)
    replica_sets: dict[str, Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    counter: int = 0
    writes: int = 0
    """Writes of the operator to children."""
    status_writes: int = 0
    events: list[EventData] = field(default_factory=list)
    before_write: list[Callable[[Manifest | Prune], None]] = field(default_factory=list)
    """Called with each write before it happens."""
    before_reconcile: list[Callable[[], None]] = field(default_factory=list)
    """Called before each decision of a round."""

    # --- API server

    def edit(self, **spec: Any) -> None:
        """A person edits the spec: None removes a field."""
        new = {key: value for key, value in {**self.pipeline["spec"], **spec}.items() if value is not None}
        if new != self.pipeline["spec"]:
            self.pipeline["spec"] = copy.deepcopy(new)
            self.pipeline["metadata"]["generation"] += 1

    def next_id(self) -> int:
        self.counter += 1
        return self.counter

    def apply(self, manifest: Manifest) -> None:
        """Server-side apply by the one manager that there is."""
        for hook in self.before_write:
            hook(manifest)
        self.writes += 1
        key = key_of(manifest)
        live = self.children.get(key)
        new = _default(copy.deepcopy(manifest))
        metadata = new["metadata"]
        if live is None:
            metadata |= {"uid": f"uid-{self.next_id()}", "generation": 1, "creationTimestamp": format_time(self.now)}
        else:
            if key.kind in ("ConfigMap", "ControllerRevision") and live.get("data") != new.get("data"):
                raise ValueError(f"{key} is immutable")
            metadata |= {name: live["metadata"][name] for name in ("uid", "generation", "creationTimestamp")}
            if live.get("spec") != new.get("spec"):
                metadata["generation"] += 1
            if "status" in live:
                new["status"] = live["status"]
        metadata["resourceVersion"] = str(self.next_id())
        self.children[key] = new

    def prune(self, prune: Prune) -> None:
        """A DELETE with preconditions, in the background."""
        for hook in self.before_write:
            hook(prune)
        self.writes += 1
        live = self.children.get(prune.key)
        if live is not None and (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) == prune[1:]:
            self.delete(prune.key)

    def delete(self, key: ChildKey) -> None:
        """A child goes; what it owns is for collect_garbage."""
        del self.children[key]

    def endpoints(self) -> dict[str, int]:
        """Ready endpoints by Service, as the EndpointSlice controller has them when it is done."""
        return {
            key.name: sum(is_ready(pod) and _selects(child["spec"]["selector"], pod) for pod in self.pods.values())
            for key, child in self.children.items()
            if key.kind == "Service"
        }

    # --- the operator

    def observe(self) -> Observed:
        """Returns what the operator sees: as much of the objects as its store keeps.

        No copies: decisions change nothing.
        """
        return Observed(
            pipeline=self.pipeline,
            children={
                key: child if key.kind == "ConfigMap" and controller_uid(child) else slim_seen(child)
                for key, child in self.children.items()
            },
            pods=[slim_seen(pod) for pod in self.pods.values()],
            replica_sets=[slim_seen(replica_set) for replica_set in self.replica_sets.values()],
            endpoints=self.endpoints(),
        )

    def decide(self, settings: BuildSettings = BuildSettings()) -> Decision:  # noqa: B008 - frozen
        """Returns the operator's decision on the present state."""
        return decide(parse_live_pipeline(self.pipeline), self.observe(), settings, self.now)

    def reconcile(self, most_writes: int | None = None) -> int:
        """One round of the operator, which dies after most_writes writes. Returns the writes."""
        for hook in self.before_reconcile:
            hook()
        decision = self.decide()
        writes = [*decision.plan.apply, *decision.plan.prune]
        for number, write in enumerate(writes):
            if number == most_writes:
                return number
            if isinstance(write, Prune):
                self.prune(write)
            else:
                self.apply(write)
        if most_writes is None:
            self.report(self.decide() if writes else decision)
        return len(writes)

    def report(self, decision: Decision) -> None:
        """The operator writes the status of what is there now, if it differs."""
        status = compute_status(decision.pipeline, self.observe(), decision.rollout, decision.plan, self.now)
        PipelineStatus.model_validate(status)
        if status != self.pipeline.get("status"):
            self.events += compute_events(self.pipeline.get("status"), status)
            self.pipeline["status"] = status
            self.status_writes += 1

    # --- controllers

    def run_deployments(self) -> bool:
        """Each Deployment moves one step. Returns whether anything changed."""
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
        was = next(iter((before or {}).get("conditions", ())), {}).get("reason")
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
        if name in self.replica_sets:  # of a Deployment of that name that is being collected
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
        """Let each ReplicaSet make the pods that it lacks, and end those that it has too many."""
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
                "labels": {**template["metadata"]["labels"], "pod-template-hash": name.rsplit("-", 2)[1]},
                "ownerReferences": [{"kind": "ReplicaSet", "controller": True, **owner}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "conditions": []},
        }

    def terminate(self, pod: Manifest) -> None:
        """A pod is told to end."""
        if "nodeName" not in pod["spec"]:
            self.pods.pop(pod["metadata"]["name"], None)
            return
        pod["metadata"].setdefault("deletionTimestamp", format_time(self.now + GRACE))
        set_ready(pod, False)

    def collect_garbage(self) -> bool:
        """Remove what has lost its owner: ReplicaSets at once; pods are asked to end."""
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

    # --- nodes

    def schedule(self) -> bool:
        """Pods get nodes as long as there is room; the rest is told so."""
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
        """Pods with a node become ready, one of a ReplicaSet at a time, except those with the bad image."""
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
        """Terminating pods have drained."""
        ended = [name for name, pod in self.pods.items() if "deletionTimestamp" in pod["metadata"]]
        for name in ended:
            del self.pods[name]
        return bool(ended)

    STEPS = ("run_deployments", "run_replica_sets", "collect_garbage", "schedule", "start_pods", "end_pods")

    def settle(self, rounds: int = 200) -> None:
        """Everybody works until nobody has anything to do. Raises RuntimeError if that does not happen."""
        for _ in range(rounds):
            self.now += timedelta(seconds=1)
            before = (self.writes, self.status_writes)
            self.reconcile()
            moved = [getattr(self, step)() for step in self.STEPS]
            if not any(moved) and (self.writes, self.status_writes) == before:
                return
        raise RuntimeError(f"not settled after {rounds} rounds")

    # --- questions of tests

    def revision_pods(self, revision: str, stage: str) -> list[Manifest]:
        """Pods of a stage of a revision, terminating ones included."""
        return [pod for pod in self.pods.values() if member_of(pod) == (stage, revision)]

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        found = next(item for item in self.pipeline["status"]["conditions"] if item["type"] == kind)
        return found["status"], found["reason"]

    def selected(self) -> str | None:
        """Returns the revision that the entry Service selects."""
        service = self.children.get(ChildKey("Service", self.pipeline["metadata"]["name"]))
        return None if service is None else service["spec"]["selector"][REVISION_LABEL]

    def revisions(self) -> set[str]:
        """Revisions that have a Deployment."""
        return {
            child["metadata"]["labels"][REVISION_LABEL]
            for key, child in self.children.items()
            if key.kind == "Deployment"
        }


def member_of(manifest: Manifest) -> tuple[str, str]:
    """Returns stage and revision by label."""
    labels = manifest["metadata"]["labels"]
    return labels[STAGE_LABEL], labels[REVISION_LABEL]


def owner_of(manifest: Manifest) -> str:
    """Uid of the controller."""
    return str(manifest["metadata"]["ownerReferences"][0]["uid"])


def is_ready(pod: Manifest) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"])


def set_ready(pod: Manifest, ready: bool) -> None:
    rest = [item for item in pod["status"]["conditions"] if item["type"] != "Ready"]
    pod["status"]["conditions"] = [*rest, {"type": "Ready", "status": str(ready)}]
    if ready:
        pod["status"]["phase"] = "Running"


def _selects(selector: dict[str, str], pod: Manifest) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


def _count(replica_set: Manifest, name: str) -> int:
    return int(replica_set.get("status", {}).get(name, 0))


def _default(manifest: Manifest) -> Manifest:
    """Returns a few of the values that the API server fills in."""
    if manifest["kind"] == "Service":
        manifest["spec"].setdefault("sessionAffinity", "None")
        for port in manifest["spec"]["ports"]:
            port.setdefault("protocol", "TCP")
    if manifest["kind"] == "Deployment":
        spec = manifest["spec"]["template"]["spec"]
        spec.setdefault("restartPolicy", "Always")
        for container in spec["containers"]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
    return manifest


def _roll(spec: Manifest, current: Manifest, old: list[Manifest]) -> bool:
    """A rolling update's next step, by the Deployment controller's arithmetic. Returns whether it changed anything."""
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
    for item in old:  # those that do not work first
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
