"""Changes in place and Recreate rollouts in the simulated cluster. In both, only one set has pods at a time."""

from __future__ import annotations

from support.operator.operator_pipelines import make_stages
from support.operator.rollout_scenarios import reasons, replicas_of, settled, step, told
from support.operator.simulated_cluster import SimulatedCluster


def wait_for_deadline(cluster: SimulatedCluster) -> None:
    """Lets time pass until the operator has looked at all pods again without an event."""
    while (recheck := cluster.decide().rollout.recheck_at) is not None:
        cluster.now = recheck
        cluster.settle()


class TestInPlace:
    """Changes that do not touch the contract between stages, so the revision stays the same."""

    def test_pods_roll_one_by_one_while_serving_continues(self) -> None:
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

    def test_missing_replicas_become_a_failure(self) -> None:
        """After a scale-up or the end of a suspension, missing replicas are a failure once they are late."""
        larger = make_stages()
        larger[1]["replicas"] = 3
        scaled, resumed = settled(capacity=3), settled(capacity=3)
        scaled.edit(stages=larger)
        resumed.edit(suspend=True)
        resumed.settle()
        resumed.capacity = 2
        resumed.edit(suspend=None)
        for cluster in (scaled, resumed):
            cluster.settle()
            assert cluster.condition("Degraded") == ("False", "AsExpected")
            wait_for_deadline(cluster)
            assert cluster.condition("Degraded") == ("True", "Unschedulable")

    def test_a_replica_that_is_still_missing_after_an_edit_has_not_recovered(self) -> None:
        """After an edit, a missing replica is a failure only once it is late. No Event says that it recovered."""
        stages = make_stages()
        stages[1]["replicas"] = 2
        cluster = settled(capacity=4, stages=stages)
        cluster.capacity = 3
        cluster.terminate(cluster.revision_pods(str(cluster.selected()), "talker")[0])
        cluster.settle()
        assert cluster.condition("Degraded") == ("True", "Unschedulable")
        cluster.edit(rollout={"maxSurge": 2})
        cluster.settle()
        assert cluster.condition("Degraded") == ("False", "AsExpected")
        assert not any("recovered" in event.message for event in cluster.events)
        wait_for_deadline(cluster)
        assert cluster.condition("Degraded") == ("True", "Unschedulable")
        cluster.edit(rollout={})
        cluster.settle()
        assert cluster.condition("Degraded") == ("True", "Unschedulable"), "it is late already"

    def test_a_stage_without_replicas_is_reported(self) -> None:
        """A stage with 0 replicas makes Ready False with the reason ScaledToZero."""
        cluster = settled()
        stages = make_stages()
        stages[2]["replicas"] = 0
        cluster.edit(stages=stages)
        cluster.settle()
        assert cluster.condition("Ready") == ("False", "ScaledToZero")
        assert cluster.pipeline["status"]["readyStages"] == "2/3"


class TestRecreate:
    """The old set ends before the new one starts."""

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
