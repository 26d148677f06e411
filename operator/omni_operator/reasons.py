"""Every reason that a condition can have, each with its symptom and its remedy.

The table in docs/status.md is generated from EXPLANATIONS; a test checks that they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Reason of a condition: one machine-readable word."""

    # Ready=True
    ALL_STAGES_READY = "AllStagesReady"
    # Progressing=True
    STARTING = "Starting"
    UPDATING = "Updating"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_NEEDS_CAPACITY = "RolloutNeedsCapacity"
    WAITING_FOR_OLD_REVISION = "WaitingForOldRevision"
    DRAINING_OLD_REVISION = "DrainingOldRevision"
    SUSPENDING = "Suspending"
    # Progressing=False
    ROLLOUT_COMPLETE = "RolloutComplete"
    # Degraded=False
    AS_EXPECTED = "AsExpected"
    # Ready, from and to zero
    SLEEPING = "Sleeping"
    WAKING = "Waking"
    # Ready=False, of the whole pipeline
    SUSPENDED = "Suspended"
    SCALED_TO_ZERO = "ScaledToZero"
    INVALID_SPEC = "InvalidSpec"
    TOO_MANY_PIPELINES = "TooManyPipelines"
    CHILD_CONFLICT = "ChildConflict"
    APPLY_FAILED = "ApplyFailed"
    STAGES_NOT_READY = "StagesNotReady"
    ENTRY_NOT_READY = "EntryNotReady"
    TERMINATING = "Terminating"
    CHANGED_BY_ADMISSION = "ChangedByAdmission"
    # Scaling, ObjectivesMet
    FOLLOWS_LOAD = "FollowsLoad"
    SCALING_NEEDS_CAPACITY = "ScalingNeedsCapacity"
    SCALING_LIMITED = "ScalingLimited"
    LOAD_UNKNOWN = "LoadUnknown"
    OBJECTIVES_KEPT = "ObjectivesKept"
    OBJECTIVES_MISSED = "ObjectivesMissed"
    # RouteAccepted
    ACCEPTED = "Accepted"
    ROUTE_PENDING = "RoutePending"
    ROUTE_REFUSED = "RouteRefused"
    ROUTE_UNRESOLVED = "RouteUnresolved"
    ROUTE_UNAVAILABLE = "RouteUnavailable"
    # SpecUnderstood=False
    UNKNOWN_FIELDS = "UnknownFields"
    # Of pods
    REPLICAS_MISSING = "ReplicasMissing"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME_NOT_BOUND = "VolumeNotBound"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PODS_REFUSED = "PodsRefused"
    IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
    INVALID_IMAGE_NAME = "InvalidImageName"
    MISSING_REFERENCE = "MissingReference"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    VOLUMES_NOT_READY = "VolumesNotReady"
    MODEL_NOT_FOUND = "ModelNotFound"
    TOKEN_REJECTED = "TokenRejected"  # noqa: S105 - a reason, not a token
    CERTIFICATE_REJECTED = "CertificateRejected"
    FETCH_FAILED = "FetchFailed"
    CONFIG_REJECTED = "ConfigRejected"
    ENGINE_DEAD = "EngineDead"
    OOM_KILLED = "OOMKilled"
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    PROBE_FAILING = "ProbeFailing"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    ROLLOUT_PAUSED = "RolloutPaused"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A row of the table in the documentation."""

    conditions: str
    """The conditions that can have the reason, e.g. `Ready=False, Degraded=True`."""
    symptom: str
    """What the user observes."""
    remedy: str
    """What to do."""


_FAILS: Final = "Ready=False, Degraded=True"
_REFUSED: Final = "Progressing=False, Degraded=True, and Ready=False where nothing serves"
_WAITS: Final = "Ready=False, then Degraded=True"

EXPLANATIONS: Final[dict[Reason, Explanation]] = {
    Reason.ALL_STAGES_READY: Explanation(
        "Ready=True", "Clients can connect, and every stage has a ready pod.", "Nothing."
    ),
    Reason.STARTING: Explanation(
        "Progressing=True",
        "The pods of the revision are starting, and no other revision serves.",
        "Wait: pulling the image and loading the model take minutes. The message names the stages.",
    ),
    Reason.UPDATING: Explanation(
        "Progressing=True",
        "A compatible change adds, removes or replaces pods; the others keep serving.",
        "Wait. If new pods do not fit, remove old ones first: spec.rollout.maxSurge: 0, maxUnavailable: 1.",
    ),
    Reason.ROLLING_OUT: Explanation(
        "Progressing=True",
        "A new revision starts beside the one that serves.",
        "Wait: the Service switches when all its stages are available. To abandon the rollout, restore the old spec.",
    ),
    Reason.ROLLOUT_NEEDS_CAPACITY: Explanation(
        "Progressing=True",
        "The new revision does not fit beside the old one, which is kept.",
        "Add nodes or quota, or accept a pause in serving: spec.rollout.strategy: Recreate.",
    ),
    Reason.WAITING_FOR_OLD_REVISION: Explanation(
        "Ready=False, Progressing=True",
        "Strategy Recreate: the old revision ends before the new one starts.",
        "Wait: requests in flight may take as long as spec.timeouts.request.",
    ),
    Reason.DRAINING_OLD_REVISION: Explanation(
        "Progressing=True",
        "The new revision serves; the old one drains, entry stage first.",
        "Wait: requests in flight may take as long as spec.timeouts.request.",
    ),
    Reason.SUSPENDING: Explanation(
        "Ready=False, Progressing=True", "spec.suspend is true and pods are draining.", "Wait."
    ),
    Reason.ROLLOUT_COMPLETE: Explanation(
        "Progressing=False", "What runs matches the spec, and clients can connect.", "Nothing."
    ),
    Reason.AS_EXPECTED: Explanation("Degraded=False", "Nothing failed.", "Nothing."),
    Reason.SUSPENDED: Explanation(
        "Ready=False, Progressing=False", "spec.suspend is true: no pod runs.", "Set spec.suspend: false to serve."
    ),
    Reason.SLEEPING: Explanation(
        "Ready=True",
        "Nobody used the pipeline for idleSeconds, so it has no pods. A gateway holds the next request and wakes it; "
        "gRPC clients that call the pipeline's own address cannot connect until it is awake.",
        "Nothing. To wake it by hand: kubectl scale omnistage PIPELINE-ENTRY --replicas=1.",
    ),
    Reason.WAKING: Explanation(
        "Ready=False, Progressing=True",
        "The pipeline slept, and pods of all stages are starting. Gateways hold requests until they serve.",
        "Wait; the message says what a stage waits for.",
    ),
    Reason.SCALED_TO_ZERO: Explanation(
        "Ready=False", "A stage has replicas: 0.", "Set replicas of that stage to 1 or more."
    ),
    Reason.INVALID_SPEC: Explanation(
        f"{_REFUSED}; SpecUnderstood=False",
        "The spec exceeds 64 KiB, or another version of the resource accepted a value that this operator does not "
        "understand. The last spec that it accepted stays in force: what serves is healed, but not changed.",
        "Correct the fields in the message, or upgrade the operator to the version of the CRD.",
    ),
    Reason.UNKNOWN_FIELDS: Explanation(
        "SpecUnderstood=False",
        "The CRD is newer than the operator and has fields that the operator does not know. It ignores them.",
        "Upgrade the operator to the version of the CRD.",
    ),
    Reason.TOO_MANY_PIPELINES: Explanation(
        _REFUSED,
        "The namespace has more pipelines than the operator manages (100 by default), and this is not among the "
        "oldest. The operator changes nothing for it.",
        "Delete other pipelines, or raise the chart's operator.maxPipelinesPerNamespace.",
    ),
    Reason.CHILD_CONFLICT: Explanation(
        "Degraded=True, and Ready=False where the object is needed to serve; RouteAccepted=False where it is the route",
        "An object with the name of one of the pipeline's children belongs to somebody else. The operator leaves that "
        "object untouched.",
        "Give the pipeline another name, or, if nobody needs the objects, run the command in the message.",
    ),
    Reason.APPLY_FAILED: Explanation(
        "Degraded=True; RouteAccepted=False alone where it is the route",
        "The operator could not write an object: the API server refuses it (an admission policy, a quota on objects, "
        "missing rights) or fails.",
        "Read the API server's answer in the message; the operator retries with growing pauses.",
    ),
    Reason.STAGES_NOT_READY: Explanation(
        "Ready=False",
        "Stages have no ready pod, and no cause is known yet; or their Service does not lead to the pods.",
        "Wait; the Progressing condition has details.",
    ),
    Reason.ENTRY_NOT_READY: Explanation(
        "Ready=False, and Degraded=True if it was complete before",
        "All stages serve, but a stable Service (NAME or NAME-headless) does not exist, or does not lead to them.",
        "Wait for seconds; if it lasts, the message says what is missing: kubectl describe service.",
    ),
    Reason.CHANGED_BY_ADMISSION: Explanation(
        "Degraded=True, and Degraded=False where the change does no harm",
        "An admission webhook or policy changes what the operator writes. If it changes replicas, selectors, ports or "
        "labels, the pipeline cannot become what the spec says: suspending or retiring may not end.",
        "Exempt the object in the message from the webhook or policy. The operator tries again every minute.",
    ),
    Reason.TERMINATING: Explanation(
        "Ready=False, Progressing=True, Degraded=False",
        "The pipeline is being deleted, and a finalizer holds it. The operator changes nothing any more.",
        "Wait for the controller of the finalizer in the message, or remove the finalizer.",
    ),
    Reason.FOLLOWS_LOAD: Explanation(
        "Scaling=True", "Stages with scaling have the pods that their load needs.", "Nothing."
    ),
    Reason.SCALING_NEEDS_CAPACITY: Explanation(
        "Scaling=False",
        "The load needs more pods of a stage, and the cluster has no room for them. Stages that wait for it are not "
        "grown either.",
        "Add nodes, GPUs or quota, or lower maxReplicas; the message says what is missing.",
    ),
    Reason.SCALING_LIMITED: Explanation(
        "Scaling=False", "The load needs more pods of a stage than maxReplicas.", "Raise maxReplicas of the stage."
    ),
    Reason.LOAD_UNKNOWN: Explanation(
        "Scaling=False",
        "The operator has no two readings of a stage's metrics, so the stage keeps its pods.",
        "Wait for 30 s; if it lasts, let the operator reach port 9090 of the pods.",
    ),
    Reason.OBJECTIVES_KEPT: Explanation("ObjectivesMet=True", "Clients get what spec.objectives promises.", "Nothing."),
    Reason.OBJECTIVES_MISSED: Explanation(
        "ObjectivesMet=False",
        "Within the window, clients did not get what spec.objectives promises.",
        "Give the stage in the message more pods (scaling does so by itself, up to maxReplicas), or promise less.",
    ),
    Reason.ACCEPTED: Explanation(
        "RouteAccepted=True",
        "Every Gateway of entry.route has accepted the route, or the Ingress has an address.",
        "Nothing.",
    ),
    Reason.ROUTE_PENDING: Explanation(
        "RouteAccepted=False",
        "No controller has answered for the route since its last change.",
        "Wait for seconds; if it lasts, check that the Gateway or IngressClass exists, and that its controller runs.",
    ),
    Reason.ROUTE_REFUSED: Explanation(
        "RouteAccepted=False",
        "A Gateway does not accept the route (Accepted=False): its listeners do not admit the namespace, the kind or "
        "the host names.",
        "Change entry.route or the Gateway, as the message says.",
    ),
    Reason.ROUTE_UNRESOLVED: Explanation(
        "RouteAccepted=False",
        "A Gateway accepts the route, but cannot use the Service behind it (ResolvedRefs=False, or what it says of the "
        "BackendTLSPolicy).",
        "Read the Gateway's answer in the message.",
    ),
    Reason.ROUTE_UNAVAILABLE: Explanation(
        "RouteAccepted=False",
        "The cluster lacks the API of the route, or the operator's Role has no rights to it. Everything else is served "
        "and healed.",
        "Install the Gateway API's CRDs, or upgrade the operator's Role, as the message says. The operator looks again "
        "every five minutes.",
    ),
    Reason.ROLLOUT_PAUSED: Explanation(
        "Degraded=True, and Ready=False where no pod is left",
        "Someone paused a stage's Deployment (kubectl rollout pause), so its pods are not replaced by the spec's.",
        "Run kubectl rollout resume on the Deployment in the message.",
    ),
    Reason.REPLICAS_MISSING: Explanation(
        "Ready=False if none is left, Degraded=True",
        "A stage has lost replicas; they are being replaced.",
        "Wait; if it lasts, check the pods: kubectl describe pod.",
    ),
    Reason.UNSCHEDULABLE: Explanation(
        _WAITS,
        "No node has capacity for a pod, usually no free GPU.",
        "Add nodes, free GPUs, or lower resources or replicas. The message says what is missing.",
    ),
    Reason.VOLUME_NOT_BOUND: Explanation(
        _WAITS,
        "A PersistentVolumeClaim does not exist or is not bound.",
        "Run kubectl get pvc; create the claim, or the volume or StorageClass that it waits for.",
    ),
    Reason.QUOTA_EXCEEDED: Explanation(
        _FAILS,
        "The namespace's ResourceQuota leaves no capacity for a pod.",
        "Raise the quota, or lower resources or replicas.",
    ),
    Reason.PODS_REFUSED: Explanation(
        _FAILS,
        "The API server refuses to create pods (a policy, a LimitRange, a missing PriorityClass).",
        "Read the answer in the message and change the policy or the spec.",
    ),
    Reason.IMAGE_PULL_BACK_OFF: Explanation(
        _FAILS,
        "The image cannot be pulled.",
        "Check the name and tag of the image, imagePullSecrets, and whether nodes reach the registry.",
    ),
    Reason.INVALID_IMAGE_NAME: Explanation(_FAILS, "The image's name is malformed.", "Correct image in the spec."),
    Reason.MISSING_REFERENCE: Explanation(
        _FAILS,
        "A Secret or ConfigMap that a container needs, or a key of it, does not exist.",
        "Create it, or correct tokenSecretRef.",
    ),
    Reason.CONTAINER_NOT_STARTED: Explanation(
        _FAILS,
        "The container runtime cannot start a container.",
        "Run kubectl describe pod; check runtimeClassName and image.",
    ),
    Reason.VOLUMES_NOT_READY: Explanation(
        _FAILS,
        "A pod has a node, but its volumes or network have not been set up for minutes.",
        "Run kubectl describe pod: FailedMount or FailedCreatePodSandBox shows the reason.",
    ),
    Reason.MODEL_NOT_FOUND: Explanation(
        _FAILS,
        "The checkpoint does not exist, is incomplete, or does not fit the component.",
        "Correct uri or revision of spec.model, or of the stage's own model, or the component.",
    ),
    Reason.TOKEN_REJECTED: Explanation(
        _FAILS,
        "The model's source refuses access: the model is private or gated, and the credentials are missing or may not "
        "read the model.",
        "Give credentials that may read the model in tokenSecretRef of spec.model, or of the stage's own model; accept "
        "the model's licence.",
    ),
    Reason.CERTIFICATE_REJECTED: Explanation(
        _FAILS,
        "The entry's certificate cannot be used: its Secret does not exist or lacks a key, or key and certificate do "
        "not belong together.",
        "Create or correct the Secret that spec.entry.tls names; the message says what is wrong with it.",
    ),
    Reason.FETCH_FAILED: Explanation(
        _FAILS,
        "The checkpoint could not be downloaded; the download is retried and resumes where it stopped.",
        "Check the network between pods and the model's source, and the space in the cache.",
    ),
    Reason.CONFIG_REJECTED: Explanation(
        _FAILS, "The stage server refuses its configuration (exit code 78).", "Correct the field in the message."
    ),
    Reason.ENGINE_DEAD: Explanation(
        _FAILS, "The stage's engine died (exit code 70); the pod restarts.", "Check kubectl logs --previous."
    ),
    Reason.OOM_KILLED: Explanation(
        _FAILS, "A container used more memory than its limit.", "Raise resources.limits.memory of the stage."
    ),
    Reason.CRASH_LOOP_BACK_OFF: Explanation(
        _FAILS, "A container exits repeatedly.", "Read the termination message, or kubectl logs --previous."
    ),
    Reason.PROBE_FAILING: Explanation(
        _FAILS,
        "Kubelet's probes fail: the stage was not ready in time, hangs, or reports that it does not serve.",
        "Check kubectl logs; for a model that loads slowly, use a faster volume.",
    ),
    Reason.NODE_LOST: Explanation(
        _FAILS,
        "The node of a pod does not respond.",
        "Repair or remove the node; the pod is replaced after some minutes.",
    ),
    Reason.EVICTED: Explanation(
        _FAILS,
        "Pods are evicted or refused by their node (memory, disk, shutdown, preemption).",
        "Raise the requests to what the pods use, or set priorityClassName.",
    ),
    Reason.PROGRESS_DEADLINE_EXCEEDED: Explanation(
        _FAILS,
        "Pods did not become ready within the Deployment's progress deadline, and no other cause is known.",
        "Check kubectl describe pod and kubectl logs.",
    ),
}
"""The explanation of every reason."""


def render_table() -> str:
    """Returns the table of docs/status.md, in Markdown."""
    rows = [
        f"| `{reason}` | {item.conditions} | {item.symptom} | {item.remedy} |" for reason, item in EXPLANATIONS.items()
    ]
    return "\n".join(["| Reason | Conditions | Symptom | Remedy |", "|---|---|---|---|", *rows]) + "\n"
