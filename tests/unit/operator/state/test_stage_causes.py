"""Which cause is reported for a stage that is not ready, which of several is chosen, and which states are no cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from omni_operator.reasons import Reason
from omni_operator.state.live import LiveStage
from omni_operator.state.pod_causes import find_cause, lacks_capacity, lost_capacity_at, next_check
from omni_operator.state.slim import slim_child
from support.operator.pod_cases import POD_CASES
from support.operator.pod_statuses import (
    NO_GPU,
    NOW,
    PLACED,
    Json,
    ago,
    backed_off,
    condition,
    container,
    deployment,
    ended,
    pod,
    stage_of,
    unscheduled,
    waiting,
)

HEALTHY: dict[str, Json] = {
    "just made": pod(conditions=[], minutes=1),
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
    "waits for a readiness gate": pod(
        [container(ready=True, running={"startedAt": ago(minutes=2)})],
        conditions=[*PLACED, condition("Ready", "False", reason="ReadinessGatesNotReady")],
    ),
    "waits for a sidecar": pod(
        [container(ready=True, running={"startedAt": ago(minutes=2)})],
        inits=[container("istio-proxy", running={"startedAt": ago(minutes=3)})],
        conditions=[*PLACED, condition("Ready", "False", reason="ContainersNotReady")],
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
    assert "zq8s4" not in cause.message, "each try has another pod name, so the message would change with every try"
    for word in words:
        assert word in cause.message
    assert lacks_capacity(stage) == (reason is Reason.QUOTA_EXCEEDED)


def test_evicted_pods_are_reported_while_replicas_are_missing() -> None:
    evicted = pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. Threshold: 100Mi.")
    cause = find_cause(stage_of(ended_pods=(evicted,)), NOW)
    assert cause is not None
    assert cause.reason == Reason.EVICTED
    assert "low on resource: memory" in cause.message
    assert find_cause(stage_of(ended_pods=(evicted,), available=1), NOW) is None


def test_after_the_progress_deadline_a_temporary_cause_is_a_failure() -> None:
    """After the progress deadline, a cause that could have passed by itself counts as a failure (`hard`)."""
    late = {"Progressing": {"status": "False", "reason": "ProgressDeadlineExceeded"}}
    cause = find_cause(stage_of(pod(conditions=unscheduled(NO_GPU)), **late), NOW)
    assert cause is not None
    assert (cause.reason, cause.hard) == (Reason.UNSCHEDULABLE, True)
    cause = find_cause(stage_of(HEALTHY["loading"], **late), NOW)
    assert cause is not None
    assert cause.reason == Reason.PROGRESS_DEADLINE_EXCEEDED


def test_a_completed_deployment_has_a_deadline_for_each_pod() -> None:
    """Kubernetes checks no deadline of a completed Deployment, e.g. after it is scaled up, so the operator does."""
    done = {"Progressing": {"status": "True", "reason": "NewReplicaSetAvailable"}}
    stuck = pod(conditions=unscheduled(NO_GPU))  # created five minutes ago
    for deadline_s, late in ((301, False), (300, True)):
        stage = stage_of(HEALTHY["ready"], stuck, replicas=2, available=1, deadline_s=deadline_s, **done)
        cause = find_cause(stage, NOW)
        assert cause is not None
        assert (cause.reason, cause.hard) == (Reason.UNSCHEDULABLE, late)
        assert next_check(stage, NOW) == (None if late else NOW + timedelta(seconds=1))
    # For a pod that was ready, the time counts from when it stopped being ready.
    restarted = pod(
        [container(running={"startedAt": ago(minutes=1)})],
        conditions=[*PLACED, condition("Ready", "False", lastTransitionTime=ago(minutes=2))],
    )
    stage = stage_of(restarted, deadline_s=180, **done)
    assert find_cause(stage, NOW) is None
    assert next_check(stage, NOW) == NOW + timedelta(minutes=1)
    cause = find_cause(stage, NOW + timedelta(minutes=1))
    assert cause is not None
    assert cause.reason == Reason.PROGRESS_DEADLINE_EXCEEDED


def test_of_several_causes_the_one_that_a_user_must_fix_is_reported() -> None:
    """Of several causes, the one that only a user can correct is reported."""
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


def test_a_crash_has_one_cause_in_every_state_of_its_container() -> None:
    """A crash gives the same cause while its container waits, has ended or runs again."""
    names = ["engine died, waits", "engine died, just now", "engine died, loads again"]
    assert len({find_cause(stage_of(POD_CASES[name][0]), NOW) for name in names}) == 1


def test_what_lacks_room() -> None:
    """lacks_capacity() is true for missing GPUs, but not for a node selector without matching nodes."""
    assert lacks_capacity(stage_of(pod(conditions=unscheduled(NO_GPU))))
    selector = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    assert not lacks_capacity(stage_of(pod(conditions=unscheduled(selector))))
    assert not lacks_capacity(stage_of(HEALTHY["ready"]))


def test_a_stage_without_replicas_has_no_cause() -> None:
    assert find_cause(stage_of(POD_CASES["no GPU"][0], replicas=0), NOW) is None


def test_when_to_look_again() -> None:
    """next_check() is the time at which a state that is normal now exceeds its time limit."""
    setup = stage_of(HEALTHY["volumes for seconds"])
    assert next_check(setup, NOW) == NOW + timedelta(minutes=1)
    assert next_check(stage_of(HEALTHY["just made"]), NOW) == NOW + timedelta(minutes=1)
    assert next_check(stage_of(HEALTHY["ready"]), NOW) is None


def test_when_the_capacity_of_lost_pods_is_lost() -> None:
    """A stage that lost its pods waits until they must have ended. A pod with a node may still become available."""
    done = {"Progressing": {"status": "True", "reason": "NewReplicaSetAvailable"}}
    stuck = pod(conditions=unscheduled(NO_GPU))  # created five minutes ago
    stage = stage_of(stuck, grace_s=330, **done)
    assert lost_capacity_at(stage) == NOW + timedelta(seconds=90)
    assert next_check(stage, NOW) == lost_capacity_at(stage)
    assert lost_capacity_at(stage_of(stuck, HEALTHY["loading"], grace_s=330, **done)) is None
    assert lost_capacity_at(stage_of(stuck, available=1, grace_s=330, **done)) is None
    assert lost_capacity_at(stage_of(stuck, grace_s=330)) is None, "the stage never was available"
    refused = {"status": "True", "message": REFUSED["quota"][0], "lastTransitionTime": ago(minutes=2)}
    assert lost_capacity_at(stage_of(grace_s=330, ReplicaFailure=refused, **done)) == NOW + timedelta(seconds=270)


def test_a_paused_deployment_whose_pods_are_of_an_old_template() -> None:
    """No correction of the spec reaches its pods before the Deployment is resumed, so nothing else is reported."""

    def stage(paused: bool, updated: int) -> LiveStage:
        live = stage_of(pod([container(waiting=waiting("ImagePullBackOff"))]))
        deployment = {
            "metadata": {"name": "demo-talker-1a2b3c4", "namespace": "models", "generation": 2},
            "spec": {"replicas": 1, "paused": paused},
            "status": {"observedGeneration": 2, "replicas": 1, "updatedReplicas": updated},
        }
        return replace(live, deployment=slim_child(owned(deployment)))

    cause = find_cause(stage(paused=True, updated=0), NOW)
    assert cause is not None
    assert (cause.reason, cause.hard) == (Reason.ROLLOUT_PAUSED, True)
    assert cause.message == (
        "its Deployment is paused, so its pods are not replaced; run kubectl rollout resume "
        "deployment/demo-talker-1a2b3c4 -n models"
    )
    for other in (stage(paused=True, updated=1), stage(paused=False, updated=0)):
        cause = find_cause(other, NOW)
        assert cause is not None
        assert cause.reason is Reason.IMAGE_PULL_BACK_OFF


ROLLING = {
    "complete": (2, 2, "NewReplicaSetAvailable", False),
    "lost a pod": (1, 1, "NewReplicaSetAvailable", False),
    "lost all pods": (0, 0, "NewReplicaSetAvailable", False),
    "starts": (0, 0, "NewReplicaSetCreated", True),
    "surges": (3, 2, "ReplicaSetUpdated", True),
    "goes back to a template that was complete": (2, 0, "NewReplicaSetAvailable", True),
}
"""Name -> replicas and updated replicas of two, the Deployment's reason of Progressing, and whether it is rolling."""


@pytest.mark.parametrize(("replicas", "updated", "reason", "rolling"), ROLLING.values(), ids=ROLLING)
def test_lost_pods_are_no_rolling_update(replicas: int, updated: int, reason: str, rolling: bool) -> None:
    live = deployment(replicas=2, Progressing={"status": "True", "reason": reason})
    live["status"] |= {"replicas": replicas, "updatedReplicas": updated}
    assert LiveStage("talker", live).rolling is rolling


def owned(deployment: Json) -> Json:
    owner = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "name": "demo", "controller": True}
    metadata = deployment["metadata"] | {"ownerReferences": [owner]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", **deployment, "metadata": metadata}
