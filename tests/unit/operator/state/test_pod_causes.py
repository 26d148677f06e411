"""Causes: pod, ReplicaSet and Deployment statuses as kubelet, scheduler and controllers write them -> what is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.reasons import Reason
from omni_operator.state.container_causes import shorten_termination
from omni_operator.state.live import LiveStage
from omni_operator.state.pod_causes import find_cause, lacks_capacity, next_check

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
    **status: Any,
) -> Json:
    """Returns a pod of stage talker."""
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
        "metadata": {"name": name, "namespace": "models", "creationTimestamp": ago(minutes=5)},
        "spec": {
            "containers": [stage],
            "initContainers": [{"name": "fetch-model", "image": IMAGE}],
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


def deployment(replicas: int = 1, available: int = 0, **conditions: Json) -> Json:
    return {
        "metadata": {"name": "demo-talker-1a2b3c4", "generation": 1},
        "spec": {"replicas": replicas},
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
        ["is gated", "spec.model.tokenSecretRef"],
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


@pytest.mark.parametrize("name", POD_CASES)
def test_cause_of_a_pod(name: str) -> None:
    given, reason, words, hard = POD_CASES[name]
    cause = find_cause(stage_of(given), NOW)
    assert cause is not None
    assert cause.reason == reason
    assert cause.hard == hard
    for word in words:
        assert word in cause.message
    assert len(cause.message) <= 1024


HEALTHY: dict[str, Json] = {
    "just made": pod(conditions=[]),
    "creating": pod([container(waiting=waiting("ContainerCreating"))]),
    "volumes for seconds": pod(
        [container(waiting=waiting("ContainerCreating"))],
        conditions=[condition("PodReadyToStartContainers", "False"), condition("PodScheduled", "True")],
    ),
    "downloading": pod(
        [container(waiting=waiting("PodInitializing"))],
        inits=[container("fetch-model", running={"startedAt": ago(hours=1)})],
    ),
    "downloaded": pod(
        [container(waiting=waiting("PodInitializing"))],
        inits=[container("fetch-model", ready=True, terminated=ended(0, reason="Completed"))],
    ),
    "downloaded at the second try": pod(
        [container(running={"startedAt": ago(minutes=1)})],
        inits=[container("fetch-model", 1, ready=True, last=ended(1), terminated=ended(0, reason="Completed"))],
    ),
    "loading": pod(
        [container(running={"startedAt": ago(minutes=10)})],
        conditions=[*PLACED, condition("Ready", "False", lastTransitionTime=ago(minutes=11))],
    ),
    "ready": pod(
        [container(ready=True, running={"startedAt": ago(hours=2)})], conditions=[*PLACED, condition("Ready", "True")]
    ),
    "ready again": pod(
        [container(ready=True, restarts=4, last=ended(70), running={"startedAt": ago(hours=2)})],
        conditions=[*PLACED, condition("Ready", "True")],
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_cause_in_what_goes_well(name: str) -> None:
    assert find_cause(stage_of(HEALTHY[name]), NOW) is None


def test_a_terminating_pod_is_no_cause() -> None:
    given = pod([backed_off(ended(70))])
    given["metadata"]["deletionTimestamp"] = ago(seconds=-30)
    assert find_cause(stage_of(given), NOW) is None


REFUSED: dict[str, tuple[str, Reason, list[str]]] = {
    "quota": (
        'pods "demo-talker-1a2b3c4-6d8f7c-zq8s4" is forbidden: exceeded quota: gpus, requested: '
        "requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4",
        Reason.QUOTA_EXCEEDED,
        ["ResourceQuota gpus", "requests.nvidia.com/gpu=1;"],
    ),
    "pod security": (
        'pods "demo-talker-1a2b3c4-6d8f7c-zq8s4" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot',
        Reason.PODS_REFUSED,
        ['refuses to create pods: violates PodSecurity "restricted:latest"'],
    ),
    "invalid": (
        'Pod "demo-talker-1a2b3c4-6d8f7c-zq8s4" is invalid: spec.containers[0].resources: requests above limits',
        Reason.PODS_REFUSED,
        ["refuses to create pods: spec.containers[0]"],
    ),
    "priority class": (
        'pods "demo-talker-1a2b3c4-6d8f7c-zq8s4" is forbidden: no PriorityClass with name high was found',
        Reason.PODS_REFUSED,
        ["no PriorityClass with name high"],
    ),
    "webhook": (
        'admission webhook "policy.example" denied the request: no GPUs on Fridays',
        Reason.PODS_REFUSED,
        ["no GPUs on Fridays"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("where", ["ReplicaSet", "Deployment"])
def test_pods_that_cannot_be_created(name: str, where: str) -> None:
    message, reason, words = REFUSED[name]
    failure = {"status": "True", "reason": "FailedCreate", "message": message}
    replica_set = {"metadata": {}, "status": {"conditions": [{"type": "ReplicaFailure", **failure}]}}
    stage = stage_of(replica_sets=(replica_set,)) if where == "ReplicaSet" else stage_of(ReplicaFailure=failure)
    cause = find_cause(stage, NOW)
    assert cause is not None
    assert cause.reason == reason
    assert "zq8s4" not in cause.message, "each try has another name: the message would change for ever"
    for word in words:
        assert word in cause.message
    assert lacks_capacity(stage) == (reason is Reason.QUOTA_EXCEEDED)


def test_evicted_pods_are_told_of_while_replicas_are_missing() -> None:
    evicted = pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. Threshold: 100Mi.")
    cause = find_cause(stage_of(ended_pods=(evicted,)), NOW)
    assert cause is not None
    assert cause.reason == Reason.EVICTED
    assert "low on resource: memory" in cause.message
    assert find_cause(stage_of(ended_pods=(evicted,), available=1), NOW) is None


def test_a_deadline_makes_a_failure_of_what_might_have_passed() -> None:
    late = {"Progressing": {"status": "False", "reason": "ProgressDeadlineExceeded"}}
    cause = find_cause(stage_of(pod(conditions=unscheduled(NO_GPU)), **late), NOW)
    assert cause is not None
    assert (cause.reason, cause.hard) == (Reason.UNSCHEDULABLE, True)
    cause = find_cause(stage_of(HEALTHY["loading"], **late), NOW)
    assert cause is not None
    assert cause.reason == Reason.PROGRESS_DEADLINE_EXCEEDED


def test_of_several_causes_the_one_is_told_that_a_person_must_mend() -> None:
    unplaced = pod(conditions=unscheduled(NO_GPU), name="a")
    refused = POD_CASES["configuration refused"][0]
    for pods in ((unplaced, refused), (refused, unplaced)):
        cause = find_cause(stage_of(*pods, replicas=2), NOW)
        assert cause is not None
        assert cause.reason == Reason.CONFIG_REJECTED


def test_the_message_does_not_change_with_the_size_of_the_cluster() -> None:
    larger = NO_GPU.replace("0/3", "0/9").replace("2 Insufficient", "8 Insufficient")
    messages = {find_cause(stage_of(pod(conditions=unscheduled(text))), NOW) for text in (NO_GPU, larger)}
    assert len(messages) == 1


def test_a_crash_is_told_alike_in_every_state_of_its_container() -> None:
    names = ["engine died, waits", "engine died, just now", "engine died, loads again"]
    assert len({find_cause(stage_of(POD_CASES[name][0]), NOW) for name in names}) == 1


def test_what_lacks_room() -> None:
    assert lacks_capacity(stage_of(pod(conditions=unscheduled(NO_GPU))))
    selector = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    assert not lacks_capacity(stage_of(pod(conditions=unscheduled(selector))))
    assert not lacks_capacity(stage_of(HEALTHY["ready"]))


def test_a_stage_without_replicas_has_no_cause() -> None:
    assert find_cause(stage_of(POD_CASES["no GPU"][0], replicas=0), NOW) is None


def test_when_to_look_again() -> None:
    setup = stage_of(HEALTHY["volumes for seconds"])
    assert next_check(setup, NOW) == NOW + timedelta(minutes=1)
    assert next_check(stage_of(HEALTHY["ready"]), NOW) is None


@pytest.mark.parametrize(
    ("text", "parsed"),
    {
        "": ("", "", ""),
        "plain\n text": ("", "plain text", ""),
        "x" * 4096: ("", "x" * 200, ""),
        "[1]": ("", "", ""),
        '"text"': ("", "", ""),
        "null": ("", "", ""),
        '{"reason": 1, "message": []}': ("", "", ""),
        said("FetchFailed", "a\nb" + "c" * 4096, "model.uri"): ("FetchFailed", "a b" + "c" * 597, "model.uri"),
    }.items(),
    ids=range(8),
)
def test_termination_messages(text: str, parsed: tuple[str, str, str]) -> None:
    assert shorten_termination(text) == parsed
