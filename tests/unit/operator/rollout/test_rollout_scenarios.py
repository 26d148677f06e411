"""Rollouts from beginning to end, as named scenarios over the simulated cluster."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_operator.kinds import ChildKey
from omni_proto.pod_contract import REVISION_LABEL
from support.operator_pipelines import make_stages
from support.simulated_cluster import BAD_IMAGE, SimulatedCluster, member_of


def make_cluster(capacity: int | None = None, **spec: Any) -> SimulatedCluster:
    return SimulatedCluster(
        {
            "apiVersion": "omnipipeline.io/v1alpha1",
            "kind": "OmniPipeline",
            "metadata": {"name": "demo", "namespace": "models", "uid": "0b1c", "generation": 1},
            "spec": {
                "model": {"uri": "file:///models/tiny"},
                "defaults": {"image": "stage:1"},
                "stages": make_stages(),
                **spec,
            },
        },
        capacity=capacity,
    )


def settled(capacity: int | None = None, **spec: Any) -> SimulatedCluster:
    cluster = make_cluster(capacity, **spec)
    cluster.settle()
    cluster.events.clear()
    return cluster


def step(cluster: SimulatedCluster, *without: str) -> None:
    """One round of the operator and of everybody else, except those named."""
    cluster.reconcile()
    for name in cluster.STEPS:
        if name not in without:
            getattr(cluster, name)()


def replicas_of(cluster: SimulatedCluster, revision: str) -> dict[str, int]:
    return {
        member_of(child)[0]: child["spec"]["replicas"]
        for key, child in cluster.children.items()
        if key.kind == "Deployment" and member_of(child)[1] == revision
    }


def protocols_of(cluster: SimulatedCluster) -> dict[str, str]:
    """Service -> what it tells meshes."""
    return {
        key.name: child["spec"]["ports"][0]["appProtocol"]
        for key, child in cluster.children.items()
        if key.kind == "Service"
    }


def told(cluster: SimulatedCluster) -> list[str]:
    return [event.reason for event in cluster.events]


def reasons(cluster: SimulatedCluster) -> tuple[str, str, str]:
    return tuple(cluster.condition(kind)[1] for kind in ("Ready", "Progressing", "Degraded"))  # type: ignore[return-value]


def test_first_creation() -> None:
    cluster = make_cluster()
    cluster.reconcile()
    target = cluster.selected()
    assert cluster.condition("Ready") == ("False", "StagesNotReady")
    assert cluster.condition("Progressing") == ("True", "Starting")
    children = cluster.writes
    cluster.settle()
    assert cluster.writes == children == len(cluster.children)
    assert cluster.revisions() == {target}
    assert cluster.condition("Ready") == ("True", "AllStagesReady")
    assert cluster.condition("Progressing") == ("False", "RolloutComplete")
    assert cluster.condition("Degraded") == ("False", "AsExpected")
    assert cluster.pipeline["status"]["readyStages"] == "3/3"
    assert told(cluster) == ["Starting", "AllStagesReady", "RolloutComplete"]
    assert cluster.status_writes <= 3


def test_an_idle_resync_writes_nothing() -> None:
    cluster = settled()
    before = (cluster.writes, cluster.status_writes, copy.deepcopy(cluster.children))
    cluster.reconcile()
    assert (cluster.writes, cluster.status_writes, cluster.children) == before


def test_decisions_change_nothing_that_they_are_given() -> None:
    cluster = settled()
    cluster.edit(defaults={"image": "stage:2"})
    before = copy.deepcopy((cluster.pipeline, cluster.children, cluster.pods, cluster.replica_sets))
    cluster.decide()
    assert before == (cluster.pipeline, cluster.children, cluster.pods, cluster.replica_sets)


class TestBlueGreen:
    """A new revision beside the one that serves."""

    def test_switch_and_retirement_in_order(self) -> None:
        cluster = settled()
        old = cluster.selected()
        assert old
        cluster.edit(defaults={"image": "stage:2"})
        step(cluster, "start_pods")
        step(cluster, "start_pods")
        assert cluster.selected() == old
        assert reasons(cluster) == ("AllStagesReady", "RollingOut", "AsExpected")
        while cluster.selected() == old:
            assert replicas_of(cluster, old) == {"thinker": 1, "talker": 1, "token2wav": 1}
            step(cluster)
        # The switch is in the API; only now does the old set begin to end, and while its entry drains, no further.
        for _ in range(4):
            step(cluster, "end_pods")
        assert replicas_of(cluster, old) == {"thinker": 0, "talker": 1, "token2wav": 1}
        assert reasons(cluster) == ("AllStagesReady", "DrainingOldRevision", "AsExpected")
        cluster.end_pods()
        for _ in range(4):
            step(cluster, "end_pods")
        assert replicas_of(cluster, old) == {"thinker": 0, "talker": 0, "token2wav": 1}
        cluster.settle()
        assert old not in cluster.revisions()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")
        assert told(cluster) == ["RollingOut", "DrainingOldRevision", "RolloutComplete"]

    def test_back_to_the_old_spec_midway(self) -> None:
        cluster = settled()
        old = cluster.selected()
        cluster.edit(defaults={"image": BAD_IMAGE})
        for _ in range(4):
            step(cluster)
        assert len(cluster.revisions()) == 2
        pods = {name for name, pod in cluster.pods.items() if member_of(pod)[1] == old}
        cluster.edit(defaults={"image": "stage:1"})
        cluster.settle()
        assert cluster.revisions() == {old}
        assert set(cluster.pods) == pods, "the pods that serve were left alone"

    def test_back_to_the_old_spec_while_the_old_set_drains(self) -> None:
        cluster = settled()
        old = cluster.selected()
        cluster.edit(defaults={"image": "stage:2"})
        while cluster.selected() == old:
            step(cluster)
        new = cluster.selected()
        for _ in range(4):
            step(cluster, "end_pods")
        cluster.edit(defaults={"image": "stage:1"})
        step(cluster, "end_pods")
        assert cluster.selected() == new, "the old set is not complete any more: first it must be again"
        cluster.settle()
        assert cluster.selected() == old
        assert cluster.revisions() == {old}

    def test_a_third_revision_midway_retires_the_second(self) -> None:
        cluster = settled()
        first = cluster.selected()
        cluster.edit(defaults={"image": BAD_IMAGE})
        for _ in range(3):
            step(cluster)
        (second,) = cluster.revisions() - {first}
        cluster.edit(defaults={"image": "stage:3"})
        step(cluster, "start_pods", "end_pods")
        step(cluster, "start_pods", "end_pods")
        assert replicas_of(cluster, second)["thinker"] == 0
        assert cluster.selected() == first
        cluster.settle()
        assert len(cluster.revisions()) == 1
        assert cluster.selected() not in (first, second)

    def test_a_target_that_never_gets_ready_leaves_the_old_one_serving(self) -> None:
        cluster = settled()
        old = cluster.selected()
        cluster.edit(defaults={"image": BAD_IMAGE})
        cluster.settle()
        assert cluster.selected() == old
        assert len(cluster.revisions()) == 2
        assert reasons(cluster) == ("AllStagesReady", "RollingOut", "ImagePullBackOff")
        (message,) = [
            item["message"] for item in cluster.pipeline["status"]["conditions"] if item["type"] == "Degraded"
        ]
        assert f"revision {old} keeps serving" in message
        assert "stage thinker" in message
        assert BAD_IMAGE in message

    def test_no_room_for_two_sets(self) -> None:
        cluster = settled(capacity=4)
        old = cluster.selected()
        cluster.edit(defaults={"image": "stage:2"})
        cluster.settle()
        assert cluster.selected() == old
        assert reasons(cluster) == ("AllStagesReady", "RolloutNeedsCapacity", "AsExpected")
        (message,) = [
            item["message"] for item in cluster.pipeline["status"]["conditions"] if item["type"] == "Progressing"
        ]
        assert "Recreate" in message
        assert "Insufficient nvidia.com/gpu" in message
        cluster.edit(rollout={"strategy": "Recreate"})
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()} != {old}
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_the_correction_of_a_first_mistake_does_not_wait_for_its_room(self) -> None:
        cluster = make_cluster(capacity=3, defaults={"image": BAD_IMAGE})
        cluster.settle()
        assert cluster.condition("Ready") == ("False", "ImagePullBackOff")
        cluster.edit(defaults={"image": "stage:2"})
        cluster.settle()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_the_correction_of_one_broken_stage_takes_its_room_only_when_it_needs_it(self) -> None:
        stages = make_stages()
        stages[1]["image"] = BAD_IMAGE
        cluster = make_cluster(capacity=6, stages=stages)
        cluster.settle()
        first = cluster.selected()
        cluster.edit(stages=make_stages())
        for _ in range(2):
            step(cluster, "start_pods")
        assert cluster.selected() == first, "there is room: what serves text goes on serving it"
        cluster.settle()
        assert cluster.revisions() != {first}
        tight = make_cluster(capacity=3, stages=stages)
        tight.settle()
        tight.edit(stages=make_stages())
        tight.settle()
        assert reasons(tight) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_replicas_edited_midway_count_before_the_switch(self) -> None:
        cluster = settled()
        old = cluster.selected()
        cluster.edit(defaults={"image": "stage:2"})
        for _ in range(3):
            step(cluster, "start_pods")
        stages = [{**stage, "replicas": 2} for stage in make_stages()]
        cluster.edit(stages=stages)
        cluster.settle()
        assert cluster.selected() != old
        assert set(replicas_of(cluster, str(cluster.selected())).values()) == {2}

    def test_the_url_tells_how_the_set_that_serves_is_reached(self) -> None:
        cluster = settled(capacity=4)
        old, tls = cluster.selected(), {"tls": {"secretName": "cert"}}
        cluster.edit(defaults={"image": "stage:2"}, entry=tls)
        cluster.settle()
        assert (cluster.selected(), cluster.pipeline["status"]["url"]) == (old, "grpc://demo.models.svc:50051")
        assert protocols_of(cluster)["demo"] == "kubernetes.io/h2c"
        cluster.edit(rollout={"strategy": "Recreate"})
        cluster.settle()
        assert cluster.selected() != old
        assert cluster.pipeline["status"]["url"] == "grpcs://demo.models.svc:50051"
        assert protocols_of(cluster)["demo"] == "https"

    def test_stages_renamed_and_removed(self) -> None:
        cluster = settled()
        cluster.edit(stages=[{**make_stages()[0], "name": "brain"}])
        cluster.settle()
        assert {member_of(child)[0] for key, child in cluster.children.items() if key.kind == "Deployment"} == {"brain"}
        assert cluster.pipeline["status"]["readyStages"] == "1/1"


class TestInPlace:
    """Changes that keep the contract between stages."""

    def test_pods_roll_one_by_one_and_serving_goes_on(self) -> None:
        cluster = settled()
        revision, configs = cluster.selected(), {key for key in cluster.children if key.kind == "ConfigMap"}
        cluster.edit(timeouts={"request": 60})
        for _ in range(2):
            step(cluster, "start_pods")
        assert reasons(cluster) == ("AllStagesReady", "Updating", "AsExpected")
        assert configs <= set(cluster.children), "the old pods still read them"
        cluster.settle()
        assert cluster.revisions() == {revision}
        assert not configs & set(cluster.children)
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_tls_replaces_the_pods_of_the_entry_alone(self) -> None:
        cluster = settled()
        revision, before = cluster.selected(), {pod["metadata"]["name"] for pod in cluster.pods.values()}
        cluster.edit(entry={"tls": {"secretName": "cert"}})
        cluster.settle()
        gone = before - {pod["metadata"]["name"] for pod in cluster.pods.values()}
        assert len(gone) == 1
        assert "-thinker-" in gone.pop()
        assert cluster.revisions() == {revision}
        assert cluster.pipeline["status"]["url"] == "grpcs://demo.models.svc:50051"
        cluster.edit(entry={})
        cluster.settle()
        assert cluster.revisions() == {revision}
        assert cluster.pipeline["status"]["url"] == "grpc://demo.models.svc:50051"

    def test_scaling(self) -> None:
        cluster = settled()
        cluster.edit(stages=[{**stage, "replicas": 3} for stage in make_stages()])
        for _ in range(3):
            step(cluster, "start_pods")
        assert reasons(cluster) == ("AllStagesReady", "Updating", "AsExpected")
        cluster.settle()
        assert told(cluster) == ["Updating", "RolloutComplete"]
        assert [stage["readyReplicas"] for stage in cluster.pipeline["status"]["stages"]] == [3, 3, 3]

    def test_a_stage_without_replicas_is_told(self) -> None:
        cluster = settled()
        stages = make_stages()
        stages[2]["replicas"] = 0
        cluster.edit(stages=stages)
        cluster.settle()
        assert cluster.condition("Ready") == ("False", "ScaledToZero")
        assert cluster.pipeline["status"]["readyStages"] == "2/3"


class TestRecreate:
    """The old set ends first."""

    def test_the_new_set_waits_for_the_old_one(self) -> None:
        cluster = settled(rollout={"strategy": "Recreate"}, capacity=3)
        old = cluster.selected()
        cluster.edit(defaults={"image": "stage:2"})
        for _ in range(4):
            step(cluster, "end_pods")
        assert replicas_of(cluster, str(old)) == {"thinker": 0, "talker": 1, "token2wav": 1}
        assert cluster.revisions() == {old}
        assert cluster.selected() != old, "no new request reaches the set that ends"
        assert reasons(cluster) == ("WaitingForOldRevision", "WaitingForOldRevision", "AsExpected")
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()}
        assert told(cluster)[-2:] == ["AllStagesReady", "RolloutComplete"]

    def test_back_to_the_old_spec_midway(self) -> None:
        cluster = settled(rollout={"strategy": "Recreate"})
        old = cluster.selected()
        cluster.edit(defaults={"image": "stage:2"})
        for _ in range(3):
            step(cluster, "end_pods")
        cluster.edit(defaults={"image": "stage:1"})
        cluster.settle()
        assert cluster.revisions() == {old} == {cluster.selected()}


class TestSuspend:
    """No pods, all else stays."""

    def test_pods_end_from_the_entry_downwards_and_come_back(self) -> None:
        cluster = settled()
        revision, children = str(cluster.selected()), set(cluster.children)
        cluster.edit(suspend=True)
        for _ in range(4):
            step(cluster, "end_pods")
        assert replicas_of(cluster, revision) == {"thinker": 0, "talker": 1, "token2wav": 1}
        assert reasons(cluster) == ("Suspended", "Suspending", "AsExpected")
        cluster.settle()
        assert not cluster.pods
        assert set(cluster.children) == children - {key for key in children if key.kind == "ControllerRevision"} | {
            key for key in cluster.children if key.kind == "ControllerRevision"
        }
        assert reasons(cluster) == ("Suspended", "Suspended", "AsExpected")
        cluster.edit(suspend=None)
        cluster.settle()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_created_suspended(self) -> None:
        cluster = make_cluster(suspend=True)
        cluster.settle()
        assert not cluster.pods
        assert set(replicas_of(cluster, str(cluster.selected())).values()) == {0}

    def test_woken_as_another_revision_the_old_one_is_not_started(self) -> None:
        cluster = settled(suspend=True)
        old = str(cluster.selected())
        cluster.edit(suspend=None, defaults={"image": "stage:2"})
        cluster.reconcile()
        assert set(replicas_of(cluster, old).values()) <= {0}
        cluster.settle()
        assert old not in cluster.revisions()


class TestHands:
    """What people and accidents do to children."""

    @pytest.mark.parametrize("kind", ["Deployment", "Service", "ConfigMap", "NetworkPolicy", "ServiceAccount"])
    def test_a_deleted_child_comes_back(self, kind: str) -> None:
        cluster = settled()
        keys = set(cluster.children)
        for key in [key for key in keys if key.kind == kind]:
            cluster.delete(key)
        cluster.settle()
        assert set(cluster.children) == keys
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_the_serving_set_is_healed_during_a_rollout(self) -> None:
        cluster = settled()
        old = str(cluster.selected())
        cluster.edit(defaults={"image": BAD_IMAGE})
        cluster.settle()
        cluster.delete(ChildKey("Deployment", f"demo-talker-{old}"))
        cluster.settle()
        assert cluster.selected() == old
        assert replicas_of(cluster, old) == {"thinker": 1, "talker": 1, "token2wav": 1}
        assert cluster.condition("Ready") == ("True", "AllStagesReady")

    def test_a_serving_set_that_is_gone_gives_way(self) -> None:
        cluster = settled()
        old = str(cluster.selected())
        cluster.edit(defaults={"image": BAD_IMAGE})
        cluster.settle()
        for key in [key for key in cluster.children if key.name.endswith(old)]:
            cluster.delete(key)
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()} != {old}
        assert cluster.condition("Ready") == ("False", "ImagePullBackOff")

    def test_a_serving_set_whose_snapshot_is_lost_is_left_alone_until_the_switch(self) -> None:
        cluster = settled()
        old = str(cluster.selected())
        cluster.edit(defaults={"image": "stage:2"})
        for _ in range(2):
            step(cluster, "start_pods")
        for key in [key for key in cluster.children if key.kind == "ControllerRevision" and f"-{old}-" in key.name]:
            cluster.delete(key)
        step(cluster, "start_pods")
        assert cluster.selected() == old
        assert replicas_of(cluster, old) == {"thinker": 1, "talker": 1, "token2wav": 1}
        assert cluster.condition("Ready") == ("True", "AllStagesReady")
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()} != {old}

    def test_a_selector_turned_to_a_set_that_starts_is_turned_back(self) -> None:
        cluster = settled()
        old = cluster.selected()
        cluster.edit(defaults={"image": BAD_IMAGE})
        cluster.settle()
        (target,) = cluster.revisions() - {old}
        for name in ("demo", "demo-headless"):
            cluster.children[ChildKey("Service", name)]["spec"]["selector"][REVISION_LABEL] = target
        cluster.reconcile()
        assert cluster.selected() == old

    def test_a_lost_pod_is_degraded_until_it_is_replaced(self) -> None:
        cluster = settled()
        cluster.terminate(next(pod for pod in cluster.pods.values() if member_of(pod)[0] == "talker"))
        for _ in range(2):
            step(cluster, "start_pods")
        assert reasons(cluster) == ("ReplicasMissing", "RolloutComplete", "ReplicasMissing")
        cluster.settle()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")
        assert told(cluster) == ["ReplicasMissing", "AsExpected", "AllStagesReady"]

    def test_a_pod_of_a_lost_node_does_not_hold_a_rollout_for_ever(self) -> None:
        cluster = settled()
        old = str(cluster.selected())
        cluster.edit(defaults={"image": "stage:2"})
        while cluster.selected() == old:
            step(cluster)
        for _ in range(10):
            step(cluster, "end_pods")
        assert old in cluster.revisions()
        recheck = cluster.decide().rollout.recheck_at
        assert recheck is not None
        for _ in range(3):
            cluster.now = cluster.decide().rollout.recheck_at or cluster.now
            for _ in range(4):
                step(cluster, "end_pods")
        assert old not in cluster.revisions()


def test_a_hundred_rapid_edits_end_with_the_last() -> None:
    cluster = settled()
    for number in range(100):
        cluster.edit(defaults={"image": f"stage:{number}"})
        if number % 10 == 0:
            step(cluster)
    cluster.settle()
    assert len(cluster.revisions()) == 1
    assert all(pod["spec"]["containers"][0]["image"] == "stage:99" for pod in cluster.pods.values())


@pytest.mark.parametrize(
    "edit",
    [{}, {"defaults": {"image": "stage:2"}}, {"timeouts": {"request": 60}}, {"suspend": True}],
    ids=["create", "revision", "in place", "suspend"],
)
def test_a_crash_after_any_write_comes_to_the_same_end(edit: dict[str, Any]) -> None:
    def prepare() -> SimulatedCluster:
        cluster = settled() if edit else make_cluster()
        cluster.edit(**edit)
        return cluster

    whole = prepare()
    first = whole.writes
    whole.settle()
    end = {key: child["metadata"]["annotations"] for key, child in whole.children.items()}
    for most in range(0, whole.writes - first, 3):
        cluster = prepare()
        budget = most
        while budget > 0:
            done = cluster.reconcile(budget)
            budget = budget - done if done else 0
            for name in cluster.STEPS:
                getattr(cluster, name)()
        cluster.settle()
        assert {key: child["metadata"]["annotations"] for key, child in cluster.children.items()} == end
