"""BlueGreen rollouts in the simulated cluster: a second set of pods starts while the first one serves."""

from __future__ import annotations

from datetime import timedelta

from support.operator.operator_pipelines import make_stages
from support.operator.rollout_scenarios import make_cluster, protocols_of, reasons, replicas_of, settled, step, told
from support.operator.simulated_api import member_of
from support.operator.simulated_cluster import SimulatedCluster
from support.operator.simulated_workloads import BAD_IMAGE


def lose_talker(cluster: SimulatedCluster) -> None:
    """Ends the talker's pod of the serving set, as an eviction would."""
    cluster.terminate(cluster.revision_pods(str(cluster.selected()), "talker")[0])
    cluster.end_pods()


class TestBlueGreen:
    """A new revision starts while another one serves."""

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
        # The entry Service selects the new set now. Only then does the old set scale down: its entry first, and no
        # other stage until the entry has drained.
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

    def test_a_stage_s_new_model_is_a_new_set_and_the_status_shows_the_model_that_serves(self) -> None:
        def models() -> list[str | None]:
            return [item.get("model") for item in cluster.pipeline["status"]["stages"]]

        cluster = settled()
        old = cluster.selected()
        assert models() == [None, None, None]
        stages = make_stages()
        stages[1]["model"] = {"uri": "hf://org/talker", "revision": "v2"}
        cluster.edit(stages=stages)
        step(cluster, "start_pods")
        assert cluster.selected() == old
        assert models() == [None, None, None], "the old talker serves"
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()} != {old}
        assert models() == [None, "hf://org/talker@v2", None]
        cluster.edit(stages=make_stages())
        step(cluster, "start_pods")
        assert models() == [None, "hf://org/talker@v2", None], "the new talker serves until the switch"
        cluster.settle()
        assert cluster.selected() == old
        assert models() == [None, None, None]

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
        assert cluster.selected() == new, "the old set is incomplete, so it is not selected yet"
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
        """If two sets do not fit, the old one serves until the user changes the strategy to Recreate."""
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
        """A first revision that never served gives up its GPUs for the corrected one."""
        cluster = make_cluster(capacity=3, defaults={"image": BAD_IMAGE})
        cluster.settle()
        assert cluster.condition("Ready") == ("False", "ImagePullBackOff")
        cluster.edit(defaults={"image": "stage:2"})
        cluster.settle()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_the_correction_of_a_mistake_made_while_suspended_does_not_wait_for_its_room(self) -> None:
        """Deployments with 0 replicas count as completed. The set still gives up its GPUs if it cannot start."""
        created = make_cluster(capacity=3, suspend=True, defaults={"image": BAD_IMAGE})
        edited = settled(capacity=3)
        edited.edit(suspend=True)
        edited.settle()
        edited.edit(defaults={"image": BAD_IMAGE})
        for cluster in (created, edited):
            cluster.settle()
            cluster.edit(suspend=None)
            cluster.settle()
            assert cluster.condition("Ready") == ("False", "ImagePullBackOff")
            cluster.edit(defaults={"image": "stage:2"})
            cluster.settle()
            assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_a_target_that_needs_a_correction_takes_no_room(self) -> None:
        """A set with a broken stage is kept if the target could not use its GPUs: the other stages serve text."""
        stages = make_stages()
        stages[1]["image"] = BAD_IMAGE
        cluster = make_cluster(capacity=4, stages=stages)
        cluster.settle()
        first = cluster.selected()
        cluster.edit(defaults={"image": BAD_IMAGE}, stages=make_stages())
        cluster.settle()
        assert cluster.selected() == first
        cluster.edit(defaults={"image": "stage:2"})
        cluster.settle()
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_the_correction_of_one_broken_stage_takes_its_room_only_when_it_needs_it(self) -> None:
        """A set with a broken stage ends early only if the corrected set does not fit beside it."""
        stages = make_stages()
        stages[1]["image"] = BAD_IMAGE
        cluster = make_cluster(capacity=6, stages=stages)
        cluster.settle()
        first = cluster.selected()
        cluster.edit(stages=make_stages())
        for _ in range(2):
            step(cluster, "start_pods")
        assert cluster.selected() == first, "both sets fit, so the old one keeps serving text"
        cluster.settle()
        assert cluster.revisions() != {first}
        tight = make_cluster(capacity=3, stages=stages)
        tight.settle()
        tight.edit(stages=make_stages())
        tight.settle()
        assert reasons(tight) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_a_lost_pod_whose_room_the_target_takes_does_not_block_both_sets(self) -> None:
        """If pods of the target take the GPUs of a lost pod, neither set fits, and the serving set gives up its own."""
        cluster = settled(capacity=4)
        cluster.edit(defaults={"image": "stage:2"})
        cluster.settle()
        old = cluster.selected()
        lose_talker(cluster)
        cluster.schedule()  # pods of the target, which are older than the replacement, go first
        cluster.settle()
        assert cluster.selected() == old, "the lost pod may still hold its GPU"
        assert reasons(cluster) == ("Unschedulable", "RolloutNeedsCapacity", "Unschedulable")
        assert not any("keeps serving" in item["message"] for item in cluster.pipeline["status"]["conditions"])
        recheck = cluster.decide().rollout.recheck_at
        assert recheck is not None
        cluster.now = recheck
        cluster.settle()
        assert cluster.revisions() == {cluster.selected()} != {old}
        assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")

    def test_a_lost_pod_does_not_end_a_set_for_a_broken_target(self) -> None:
        """A set that lost a pod keeps its other GPUs if the target could not use them."""
        cluster = settled(capacity=4)
        cluster.edit(defaults={"image": BAD_IMAGE})
        cluster.settle()
        old = cluster.selected()
        lose_talker(cluster)
        cluster.schedule()
        cluster.settle()
        cluster.now += timedelta(days=7)
        cluster.settle()
        assert cluster.selected() == old

    def test_replicas_edited_midway_count_before_the_switch(self) -> None:
        """Replicas that change during a rollout apply to the new set before the switch."""
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

    def test_the_url_shows_how_to_reach_the_serving_set(self) -> None:
        """status.url follows the TLS setting of the serving set, not that of the spec."""
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
