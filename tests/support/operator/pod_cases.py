"""Pods that do not serve, and the cause that the operator reports for each."""

from __future__ import annotations

from omni_operator.reasons import Reason
from support.operator.pod_statuses import (
    GATED,
    IMAGE,
    NO_GPU,
    PLACED,
    PULL,
    Json,
    ago,
    backed_off,
    condition,
    container,
    ended,
    pod,
    said,
    unscheduled,
    waiting,
)

POD_CASES: dict[str, tuple[Json, Reason, list[str], bool]] = {
    "image, backing off": (
        pod([container(waiting=waiting("ImagePullBackOff", PULL))]),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE, "no such image", "imagePullSecrets"],
        True,
    ),
    "image, trying again": (
        pod([container(waiting=waiting("ErrImagePull", PULL.partition("ErrImagePull: ")[2]))]),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE, "no such image"],
        True,
    ),
    "image of a private registry": (
        pod([container(waiting=waiting("ErrImagePull", "failed to authorize: 401 Unauthorized"))]),
        Reason.IMAGE_PULL_BACK_OFF,
        ["access refused"],
        True,
    ),
    "image that may not be pulled": (
        pod(
            [
                container(
                    waiting=waiting("ErrImageNeverPull", "Container image is not present with pull policy of Never")
                )
            ]
        ),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE],
        True,
    ),
    "image name": (
        pod([container(waiting=waiting("InvalidImageName", 'Failed to apply default image tag "x::": invalid'))]),
        Reason.INVALID_IMAGE_NAME,
        [IMAGE, "correct image"],
        True,
    ),
    "no GPU": (
        pod(conditions=unscheduled(NO_GPU)),
        Reason.UNSCHEDULABLE,
        ["1 free GPU", "Insufficient nvidia.com/gpu"],
        False,
    ),
    "no four GPUs": (pod(conditions=unscheduled(NO_GPU), gpus=4), Reason.UNSCHEDULABLE, ["4 free GPUs"], False),
    "no CPU": (
        pod(conditions=unscheduled("0/1 nodes are available: 1 Insufficient cpu."), gpus=0),
        Reason.UNSCHEDULABLE,
        ["no node for a pod: Insufficient cpu;"],
        False,
    ),
    "scheduling gate": (
        pod(conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")),
        Reason.UNSCHEDULABLE,
        ["scheduling gates"],
        False,
    ),
    "claim is missing": (
        pod(conditions=unscheduled('0/1 nodes are available: persistentvolumeclaim "models" not found. not found')),
        Reason.VOLUME_NOT_BOUND,
        ['persistentvolumeclaim "models" not found', "kubectl get pvc"],
        True,
    ),
    "claim is not bound": (
        pod(
            conditions=unscheduled(
                "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1 nodes are "
                "available: 1 Preemption is not helpful for scheduling."
            )
        ),
        Reason.VOLUME_NOT_BOUND,
        ["unbound immediate PersistentVolumeClaims"],
        False,
    ),
    "secret is missing": (
        pod([container(waiting=waiting("CreateContainerConfigError", 'secret "hf-token" not found'))]),
        Reason.MISSING_REFERENCE,
        ['secret "hf-token" not found'],
        True,
    ),
    "container cannot be created": (
        pod([container(waiting=waiting("RunContainerError", "failed to create containerd task: OCI runtime"))]),
        Reason.CONTAINER_NOT_STARTED,
        ["container stage cannot be started", "kubectl describe pod"],
        True,
    ),
    "volumes for minutes": (
        pod(
            [container(waiting=waiting("ContainerCreating"))],
            conditions=[
                condition("PodReadyToStartContainers", "False"),
                condition("PodScheduled", "True", lastTransitionTime=ago(minutes=3)),
            ],
        ),
        Reason.VOLUMES_NOT_READY,
        ["FailedMount", "x2x7p"],
        True,
    ),
    "token refused": (
        pod(inits=[backed_off(ended(78, said("InvalidConfiguration", GATED, "model.tokenSecretRef")), "fetch-model")]),
        Reason.TOKEN_REJECTED,
        ["is gated", "spec.model.tokenSecretRef", "those in use are of Secret hf-token, key token"],
        True,
    ),
    "no certificate": (
        pod(
            [
                backed_off(
                    ended(
                        78,
                        said("InvalidConfiguration", "tls.crt of Secret web-cert does not exist", "listen.tls.tls.crt"),
                    )
                )
            ]
        ),
        Reason.CERTIFICATE_REJECTED,
        ["tls.crt of Secret web-cert does not exist", "spec.entry.tls"],
        True,
    ),
    "model is not at the hub": (
        pod(
            inits=[
                backed_off(
                    ended(78, said("InvalidConfiguration", "a/b has no revision 'x'", "model.revision")), "fetch-model"
                )
            ]
        ),
        Reason.MODEL_NOT_FOUND,
        ["has no revision 'x'", "field model.revision"],
        True,
    ),
    "model is not on the claim": (
        pod([backed_off(ended(78, said("InvalidConfiguration", "/models/x holds no config.json", "model.path")))]),
        Reason.MODEL_NOT_FOUND,
        ["holds no config.json"],
        True,
    ),
    "download failed": (
        pod(
            inits=[
                backed_off(
                    ended(1, said("FetchFailed", "the hub answered 503 for a/b; try again", "model.uri")), "fetch-model"
                )
            ]
        ),
        Reason.FETCH_FAILED,
        ["answered 503"],
        True,
    ),
    "download failed and runs again": (
        pod(
            inits=[
                container(
                    "fetch-model",
                    1,
                    last=ended(1, said("FetchFailed", "timed out")),
                    running={"startedAt": ago(seconds=9)},
                )
            ]
        ),
        Reason.FETCH_FAILED,
        ["timed out"],
        True,
    ),
    "configuration refused": (
        pod([backed_off(ended(78, said("InvalidConfiguration", "raise it", "engineArgs.maxModelLen")))]),
        Reason.CONFIG_REJECTED,
        ["raise it", "field engineArgs.maxModelLen"],
        True,
    ),
    "configuration refused, no message": (pod([backed_off(ended(78))]), Reason.CONFIG_REJECTED, ["refuses"], True),
    "engine died, waits": (
        pod([backed_off(ended(70, said("EngineDead", "the engine of stage 'talker' died")))]),
        Reason.ENGINE_DEAD,
        ["the engine of stage 'talker' died", "--previous"],
        True,
    ),
    "engine died, just now": (
        pod([container(restarts=3, terminated=ended(70, said("EngineDead", "the engine of stage 'talker' died")))]),
        Reason.ENGINE_DEAD,
        ["the engine of stage 'talker' died"],
        True,
    ),
    "engine died, loads again": (
        pod(
            [
                container(
                    restarts=4,
                    running={"startedAt": ago(seconds=5)},
                    last=ended(70, said("EngineDead", "the engine of stage 'talker' died")),
                )
            ]
        ),
        Reason.ENGINE_DEAD,
        ["the engine of stage 'talker' died"],
        True,
    ),
    "start failed": (
        pod([backed_off(ended(1, said("StartFailed", "port 50051 is taken", "")))]),
        Reason.CRASH_LOOP_BACK_OFF,
        ["exit code 1", "port 50051 is taken"],
        True,
    ),
    "crash of a foreign image": (
        pod([backed_off(ended(1, "licence expired\non Friday"))]),
        Reason.CRASH_LOOP_BACK_OFF,
        ["exit code 1: licence expired on Friday;"],
        True,
    ),
    "out of memory": (
        pod([backed_off(ended(137, reason="OOMKilled"))]),
        Reason.OOM_KILLED,
        ["24Gi", "limits.memory"],
        True,
    ),
    "killed by a probe": (pod([backed_off(ended(137))]), Reason.PROBE_FAILING, ["startup or liveness probe"], True),
    "drained for a probe": (pod([backed_off(ended(0, reason="Completed"))]), Reason.PROBE_FAILING, ["liveness"], True),
    "readiness lost": (
        pod(
            [container(running={"startedAt": ago(hours=2)})],
            conditions=[
                *PLACED,
                condition("Ready", "False", reason="ContainersNotReady", lastTransitionTime=ago(seconds=20)),
            ],
            phase="Running",
        ),
        Reason.PROBE_FAILING,
        ["does not serve", "x2x7p"],
        True,
    ),
    "node lost": (
        pod(
            [container(ready=True, running={"startedAt": ago(hours=2)})],
            conditions=[*PLACED, condition("Ready", "False")],
            phase="Running",
        ),
        Reason.NODE_LOST,
        ["node gpu-1"],
        True,
    ),
}
"""Case -> (pod, expected Cause.reason, parts of Cause.message, Cause.hard)."""
