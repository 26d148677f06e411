"""Complete rollouts in the simulated cluster: creation, suspension, edits by hand and crashes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_operator.kinds import ChildKey
from omni_proto.pod_contract import REVISION_LABEL
from support.operator.rollout_scenarios import make_cluster, reasons, replicas_of, settled, step, told
from support.operator.simulated_api import member_of
from support.operator.simulated_cluster import SimulatedCluster
from support.operator.simulated_workloads import BAD_IMAGE


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
    """decide() does not modify the objects that it reads."""
    cluster = settled()
    cluster.edit(defaults={"image": "stage:2"})
    before = copy.deepcopy((cluster.pipeline, cluster.children, cluster.pods, cluster.replica_sets))
    cluster.decide()
    assert before == (cluster.pipeline, cluster.children, cluster.pods, cluster.replica_sets)


class TestSuspend:
    """A suspended pipeline has no pods. Its Deployments, Services and configuration stay."""

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
        """A pipeline that is resumed with a new revision starts no pods of the old one."""
        cluster = settled(suspend=True)
        old = str(cluster.selected())
        cluster.edit(suspend=None, defaults={"image": "stage:2"})
        cluster.reconcile()
        assert set(replicas_of(cluster, old).values()) <= {0}
        cluster.settle()
        assert old not in cluster.revisions()


class TestHands:
    """Children that users or accidents delete or change."""

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
        """If somebody deletes the serving set, the entry switches to the new set, even if that set is broken."""
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
        """If somebody points the entry Services at a set that is not ready, the operator reverts their selectors."""
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

    def test_a_pod_of_a_lost_node_does_not_block_a_rollout(self) -> None:
        """A terminating pod on a lost node delays a rollout only for a limited time."""
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
