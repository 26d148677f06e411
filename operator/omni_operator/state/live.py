"""Live sets of pods: the observed objects by revision and stage, with the queries that decisions need.

A revision's set has one Deployment for each stage. The stage and revision of Deployments and ReplicaSets are read from
their selectors, which are immutable, and not from their labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from omni_kube.objects import Manifest, controller_of, find_condition, parse_time, value_at
from omni_operator.names import entry_service_name, serving_revision, stage_name
from omni_operator.state.observed import Observed
from omni_proto.pod_contract import PIPELINE_LABEL, REVISION_LABEL, STAGE_LABEL

LOST_POD_SLACK: Final = timedelta(seconds=60)
"""How long a terminating pod still counts after its grace period. By then, kubelet has killed it or its node is
lost."""


@dataclass(frozen=True, slots=True)
class LiveStage:
    """The live objects of one stage of one revision."""

    stage: str
    deployment: Manifest | None = None
    """Its Deployment, if there is one and it belongs to the pipeline."""
    replica_sets: Sequence[Manifest] = ()
    """The ReplicaSets of that Deployment, and orphans that it would adopt."""
    pods: Sequence[Manifest] = ()
    """Pods that may still run, by name: they have not ended and are not lost (see is_lost)."""
    ended_pods: Sequence[Manifest] = ()
    """Pods that failed or succeeded (evicted ones stay as Failed), by name."""

    @property
    def replicas(self) -> int:
        """Replicas in the spec of the live Deployment; 0 without one."""
        return int(value_at(self.deployment, "spec", "replicas", default=0))

    @property
    def synced(self) -> bool:
        """Whether the Deployment controller has seen the Deployment's last change."""
        generation = value_at(self.deployment, "metadata", "generation", default=0)
        return self.deployment is not None and _status(self.deployment, "observedGeneration") >= generation

    @property
    def available(self) -> int:
        """Available pods of any template."""
        return _status(self.deployment, "availableReplicas")

    @property
    def ready(self) -> int:
        """Ready pods of any template."""
        return _status(self.deployment, "readyReplicas")

    @property
    def rolling(self) -> bool:
        """Whether pods of an older template are still being replaced. A completed Deployment that has fewer pods than
        replicas has lost them, or has just been scaled up."""
        updated = _status(self.deployment, "updatedReplicas")
        return self.deployment is not None and (
            not self.synced
            or (updated < self.replicas and not self.completed)
            or _status(self.deployment, "replicas") > updated
        )

    @property
    def paused(self) -> bool:
        """Whether someone paused the Deployment, so that Kubernetes makes no pods of a new template."""
        return bool(value_at(self.deployment, "spec", "paused", default=False))

    @property
    def completed(self) -> bool:
        """Whether all replicas of the Deployment's current template were available at some time.

        Kubernetes counts a Deployment with 0 replicas as complete, and does not check it again when it is scaled up.
        So this is true even if no replica of such a Deployment was ever available.
        """
        condition = self.condition("Progressing")
        return condition is not None and condition.get("reason") == "NewReplicaSetAvailable"

    @property
    def empty(self) -> bool:
        """Whether the stage has no pods and will get none. Only then is its downstream stage scaled down."""
        return (
            not self.pods
            and (
                self.deployment is None
                or (self.synced and not self.replicas and not _status(self.deployment, "replicas"))
            )
            and all(_is_scaled_down(replica_set) for replica_set in self.replica_sets)
        )

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        """Returns a condition of the Deployment."""
        return find_condition(self.deployment, kind)


@dataclass(frozen=True, slots=True)
class LiveSet:
    """The live objects of one revision."""

    revision: str
    stages: Mapping[str, LiveStage] = field(default_factory=dict)
    recorded: Mapping[str, int] = field(default_factory=dict)
    """Replicas of each stage that the revision is known to have had, from other objects and the last status. Read only
    if its spec is lost: a stage whose Deployment is gone is missing then, although nothing says how to make it."""

    def stage(self, name: str) -> LiveStage:
        """Returns the stage with that name; an empty one if none of its objects exist."""
        return self.stages.get(name) or LiveStage(name)


def compute_live_sets(observed: Observed, now: datetime) -> dict[str, LiveSet]:
    """Returns, by revision, the set of each revision that has a Deployment, a ReplicaSet that is not scaled to zero, or
    a pod that may still run."""
    deployments = {
        _member(child["spec"]["selector"].get("matchLabels", {})): child
        for key, child in observed.children.items()
        if key.kind == "Deployment" and observed.owns(child)
    }
    replica_sets: dict[_Member, list[Manifest]] = {}
    for replica_set in observed.replica_sets:
        member = _member(value_at(replica_set, "spec", "selector", "matchLabels", default={}))
        owner = controller_of(replica_set)
        if owner is None or (owner["kind"], owner["name"]) == ("Deployment", stage_name(observed.name, *member)):
            replica_sets.setdefault(member, []).append(replica_set)
    running: dict[_Member, list[Manifest]] = {}
    ended: dict[_Member, list[Manifest]] = {}
    for pod in sorted(observed.pods, key=lambda pod: str(pod["metadata"]["name"])):
        owner = controller_of(pod)
        if owner is not None and owner["kind"] == "ReplicaSet":
            into = ended if _phase(pod) in ("Succeeded", "Failed") else running
            if into is ended or not is_lost(pod, now):
                into.setdefault(_member(pod["metadata"].get("labels", {})), []).append(pod)
    alive = {member for member, found in replica_sets.items() if not all(_is_scaled_down(item) for item in found)}
    sets: dict[str, dict[str, LiveStage]] = {}
    for stage, revision in sorted({*deployments, *running, *alive} - {("", "")}):
        member = (stage, revision)
        sets.setdefault(revision, {})[stage] = LiveStage(
            stage=stage,
            deployment=deployments.get(member),
            replica_sets=tuple(replica_sets.get(member, ())),
            pods=tuple(running.get(member, ())),
            ended_pods=tuple(ended.get(member, ())),
        )
    return {revision: LiveSet(revision, sets[revision], _recorded(observed, revision)) for revision in sorted(sets)}


def _recorded(observed: Observed, revision: str) -> dict[str, int]:
    """Returns the stages of a revision, with their replicas (1 if unknown), without reading its spec."""
    children = [child for child in observed.children.values() if observed.owns(child)]
    labels = [child["metadata"].get("labels") or {} for child in children]
    stages = sorted(
        item[STAGE_LABEL] for item in labels if item.get(REVISION_LABEL) == revision and STAGE_LABEL in item
    )
    reported = value_at(observed.pipeline, "status", "stages", default=())
    return dict.fromkeys(stages, 1) | {
        str(item["name"]): int(item.get("replicas", 1)) for item in reported if item.get("revision") == revision
    }


def live_serving_revision(observed: Observed) -> str | None:
    """Returns the revision that the live entry Service selects, which is the serving one; None if it selects none.

    This selector is the only state of a rollout.
    """
    service = observed.child("Service", entry_service_name(observed.name))
    if service is None or not observed.owns(service):
        return None
    return serving_revision(value_at(service, "spec", "selector", default={}))


def live_balancer(observed: Observed) -> str | None:
    """Returns the class of the load balancer that the live entry Service has; empty for the cluster's default, None if
    it has none. The API server lets nobody change the class while there is one."""
    service = observed.child("Service", entry_service_name(observed.name))
    if value_at(service, "spec", "type", default="") != "LoadBalancer":
        return None
    return str(value_at(service, "spec", "loadBalancerClass", default=""))


def is_lost(pod: Manifest, now: datetime) -> bool:
    """Returns whether a terminating pod is so long past its grace period that its node must be lost."""
    ends = pod["metadata"].get("deletionTimestamp")  # the end of the grace period, not its start
    return ends is not None and parse_time(ends) + LOST_POD_SLACK <= now


_Member = tuple[str, str]


def _member(labels: Mapping[str, str]) -> _Member:
    """Returns stage and revision from labels; both are empty if a label is missing."""
    if PIPELINE_LABEL not in labels or STAGE_LABEL not in labels or REVISION_LABEL not in labels:
        return "", ""
    return labels[STAGE_LABEL], labels[REVISION_LABEL]


def _is_scaled_down(replica_set: Manifest) -> bool:
    generation = replica_set["metadata"].get("generation", 0)
    return (
        not value_at(replica_set, "spec", "replicas", default=0)
        and _status(replica_set, "observedGeneration") >= generation
        and not _status(replica_set, "replicas")
    )


def _status(manifest: Manifest | None, field_name: str) -> int:
    return int(value_at(manifest, "status", field_name, default=0))


def _phase(pod: Manifest) -> str:
    return str(value_at(pod, "status", "phase", default=""))
