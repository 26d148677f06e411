"""Every reason that a condition can have. docs/status.md has the symptom and the remedy of each."""

from __future__ import annotations

from enum import StrEnum


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
    CHANGED_BY_OTHERS = "ChangedByOthers"
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
