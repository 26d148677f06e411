"""Pods that do not serve, and the cause that the operator reports for each."""

from __future__ import annotations

from typing import NamedTuple

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


class PodCase(NamedTuple):
    """A pod, and what is expected of its Cause: the reason, parts of the message, and whether waiting does not help."""

    pod: Json
    reason: Reason
    words: list[str]
    hard: bool = True


POD_CASES: dict[str, PodCase] = {
    "image, backing off": PodCase(
        pod([container(waiting=waiting("ImagePullBackOff", PULL))]),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE, "no such image", "imagePullSecrets"],
    ),
    "image, trying again": PodCase(
        pod([container(waiting=waiting("ErrImagePull", PULL.partition("ErrImagePull: ")[2]))]),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE, "no such image"],
    ),
    "image of a private registry": PodCase(
        pod([container(waiting=waiting("ErrImagePull", "failed to authorize: 401 Unauthorized"))]),
        Reason.IMAGE_PULL_BACK_OFF,
        ["access refused"],
    ),
    "image that may not be pulled": PodCase(
        pod(
            [
                container(
                    waiting=waiting("ErrImageNeverPull", "Container image is not present with pull policy of Never")
                )
            ]
        ),
        Reason.IMAGE_PULL_BACK_OFF,
        [IMAGE],
    ),
    "image name": PodCase(
        pod([container(waiting=waiting("InvalidImageName", 'Failed to apply default image tag "x::": invalid'))]),
        Reason.INVALID_IMAGE_NAME,
        [IMAGE, "correct image"],
    ),
    "no GPU": PodCase(
        pod(conditions=unscheduled(NO_GPU)), Reason.UNSCHEDULABLE, ["1 free GPU", "Insufficient nvidia.com/gpu"], False
    ),
    "no four GPUs": PodCase(pod(conditions=unscheduled(NO_GPU), gpus=4), Reason.UNSCHEDULABLE, ["4 free GPUs"], False),
    "no CPU": PodCase(
        pod(conditions=unscheduled("0/1 nodes are available: 1 Insufficient cpu."), gpus=0),
        Reason.UNSCHEDULABLE,
        ["no node for a pod: Insufficient cpu;"],
        False,
    ),
    "scheduling gate": PodCase(
        pod(conditions=unscheduled("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")),
        Reason.UNSCHEDULABLE,
        ["scheduling gates"],
        False,
    ),
    "no scheduler": PodCase(
        pod(conditions=[]), Reason.UNSCHEDULABLE, ["no scheduler has taken up a pod", "schedulerName"]
    ),
    "claim is missing": PodCase(
        pod(conditions=unscheduled('0/1 nodes are available: persistentvolumeclaim "models" not found. not found')),
        Reason.VOLUME_NOT_BOUND,
        ['persistentvolumeclaim "models" not found', "kubectl get pvc"],
    ),
    "claim is not bound": PodCase(
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
    "secret is missing": PodCase(
        pod([container(waiting=waiting("CreateContainerConfigError", 'secret "hf-token" not found'))]),
        Reason.MISSING_REFERENCE,
        ['secret "hf-token" not found'],
    ),
    "container cannot be created": PodCase(
        pod([container(waiting=waiting("RunContainerError", "failed to create containerd task: OCI runtime"))]),
        Reason.CONTAINER_NOT_STARTED,
        ["container stage cannot be started", "kubectl describe pod"],
    ),
    "volumes for minutes": PodCase(
        pod(
            [container(waiting=waiting("ContainerCreating"))],
            conditions=[
                condition("PodReadyToStartContainers", "False"),
                condition("PodScheduled", "True", lastTransitionTime=ago(minutes=3)),
            ],
        ),
        Reason.VOLUMES_NOT_READY,
        ["FailedMount", "x2x7p"],
    ),
    "token refused": PodCase(
        pod(inits=[backed_off(ended(78, said("InvalidConfiguration", GATED, "model.tokenSecretRef")), "fetch-model")]),
        Reason.TOKEN_REJECTED,
        ["is gated", "spec.model.tokenSecretRef", "those in use are of Secret hf-token, key token"],
    ),
    "no certificate": PodCase(
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
    ),
    "model is not at the hub": PodCase(
        pod(
            inits=[
                backed_off(
                    ended(78, said("InvalidConfiguration", "a/b has no revision 'x'", "model.revision")), "fetch-model"
                )
            ]
        ),
        Reason.MODEL_NOT_FOUND,
        ["has no revision 'x'", "field model.revision"],
    ),
    "model is not on the claim": PodCase(
        pod([backed_off(ended(78, said("InvalidConfiguration", "/models/x holds no config.json", "model.path")))]),
        Reason.MODEL_NOT_FOUND,
        ["holds no config.json"],
    ),
    "download failed": PodCase(
        pod(
            inits=[
                backed_off(
                    ended(1, said("FetchFailed", "the hub answered 503 for a/b; try again", "model.uri")), "fetch-model"
                )
            ]
        ),
        Reason.FETCH_FAILED,
        ["answered 503"],
    ),
    "download failed and runs again": PodCase(
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
    ),
    "configuration refused": PodCase(
        pod([backed_off(ended(78, said("InvalidConfiguration", "raise it", "engineArgs.maxModelLen")))]),
        Reason.CONFIG_REJECTED,
        ["raise it", "field engineArgs.maxModelLen"],
    ),
    "configuration refused, no message": PodCase(pod([backed_off(ended(78))]), Reason.CONFIG_REJECTED, ["refuses"]),
    "engine died, waits": PodCase(
        pod([backed_off(ended(70, said("EngineDead", "the engine of stage 'talker' died")))]),
        Reason.ENGINE_DEAD,
        ["the engine of stage 'talker' died", "--previous"],
    ),
    "engine died, just now": PodCase(
        pod([container(restarts=3, terminated=ended(70, said("EngineDead", "the engine of stage 'talker' died")))]),
        Reason.ENGINE_DEAD,
        ["the engine of stage 'talker' died"],
    ),
    "engine died, loads again": PodCase(
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
    ),
    "start failed": PodCase(
        pod([backed_off(ended(1, said("StartFailed", "port 50051 is taken", "")))]),
        Reason.CRASH_LOOP_BACK_OFF,
        ["exit code 1", "port 50051 is taken"],
    ),
    "crash of a foreign image": PodCase(
        pod([backed_off(ended(1, "licence expired\non Friday"))]),
        Reason.CRASH_LOOP_BACK_OFF,
        ["exit code 1: licence expired on Friday;"],
    ),
    "out of memory": PodCase(
        pod([backed_off(ended(137, reason="OOMKilled"))]), Reason.OOM_KILLED, ["24Gi", "limits.memory"]
    ),
    "killed by a probe": PodCase(pod([backed_off(ended(137))]), Reason.PROBE_FAILING, ["startup or liveness probe"]),
    "drained for a probe": PodCase(pod([backed_off(ended(0, reason="Completed"))]), Reason.PROBE_FAILING, ["liveness"]),
    "readiness lost": PodCase(
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
    ),
    "node lost": PodCase(
        pod(
            [container(ready=True, running={"startedAt": ago(hours=2)})],
            conditions=[*PLACED, condition("Ready", "False")],
            phase="Running",
        ),
        Reason.NODE_LOST,
        ["node gpu-1"],
    ),
}
