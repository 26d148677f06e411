"""Deployment of a stage: its pod template, and its rolling update for a compatible change.

The template does not depend on the operator's version, so an upgrade of the operator restarts no pod unless the default
image changes.
"""

from __future__ import annotations

import math
from typing import Final

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.containers import build_fetch_container, build_stage_container, startup_seconds
from omni_operator.desired.metadata import build_child
from omni_operator.desired.placement import build_placement, pod_setting
from omni_operator.desired.stage_build import StageBuild
from omni_operator.desired.volumes import build_volumes

USER_ID: Final = 10001
"""User and group of the image."""
GRACE_BEYOND_REQUEST_S: Final = 30
"""Time in addition to the longest request: the pre-stop sleep, the start of the drain, and the engine's shutdown."""
PULL_AND_SCHEDULE_S: Final = 900
"""Time until a pod's first container runs: a node may have to be started, and images with CUDA are about 10 GB."""
DOWNLOAD_S: Final = 3600
"""Time to download a checkpoint from the hub: about 70 GB at 20 MB/s."""


def build_deployment(build: StageBuild) -> Manifest:
    """Returns the stage's Deployment."""
    rollout = build.pipeline.spec.rollout
    spec = {
        "replicas": build.replicas,
        "selector": {"matchLabels": build.selector},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "progressDeadlineSeconds": progress_deadline_seconds(build),
        # No minReadySeconds: a pod becomes ready only after a warm-up request has succeeded.
        "revisionHistoryLimit": 2,
        "template": build_pod_template(build),
    }
    return build_child("Deployment", build.name, build.owner, build.labels, {"spec": spec})


def build_pod_template(build: StageBuild) -> Manifest:
    """Returns the pod template. It conforms to Pod Security `restricted`, and its root file system is read-only."""
    labels = {**(pod_setting(build, "pod_labels") or {}), **build.labels}
    annotations = {**(pod_setting(build, "pod_annotations") or {}), names.CONFIG_HASH_ANNOTATION: build.config_hash}
    fetch = build.model.fetch
    spec: Manifest = {
        "serviceAccountName": names.service_account_name(build.owner.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(),
        "terminationGracePeriodSeconds": grace_seconds(build),
        "containers": [build_stage_container(build)],
        "volumes": build_volumes(build),
        **build_placement(build),
    }
    if fetch is not None:
        spec["initContainers"] = [build_fetch_container(build, fetch)]
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def grace_seconds(build: StageBuild) -> int:
    """Returns the termination grace period in seconds, long enough for the longest request to complete."""
    return math.ceil(build.pipeline.spec.timeouts.request) + GRACE_BEYOND_REQUEST_S


def progress_deadline_seconds(build: StageBuild) -> int:
    """Returns the seconds after which a rollout without progress has failed: more than any pod needs to get ready."""
    download = DOWNLOAD_S if build.model.fetch is not None else 0
    return PULL_AND_SCHEDULE_S + download + startup_seconds(build.gpus)


def _pod_security() -> Manifest:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        # Makes volumes writable for the user. OnRootMismatch skips large volumes that already have this group.
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
