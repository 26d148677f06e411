"""Pipelines that sleep: what counts as unused, and how all stages go to zero and come back, from any phase."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from omni_kube.objects import Manifest
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.plan import Prune
from omni_operator.rollout.replicas import Fate, ask_replicas, decide_replicas
from omni_operator.scaling.idle import idle_seconds, is_idle
from omni_operator.scaling.readings import Reading
from omni_operator.state.live import LiveSet, LiveStage
from omni_proto.pipeline.types.scaling import STAGE_KIND
from support.operator.operator_pipelines import make_pipeline, make_stages
from support.operator.rollout_machine import MACHINE_SETTINGS
from support.operator.rollout_scenarios import make_cluster, reasons, replicas_of, settled, step, told
from support.operator.simulated_api import member_of
from support.operator.simulated_cluster import SimulatedCluster
from support.operator.simulated_workloads import BAD_IMAGE
from support.tables import each_row

NAMES = ["thinker", "talker", "token2wav"]
SLEEPY = [{**stage, "scaling": {"minReplicas": 0, "maxReplicas": 4}} for stage in make_stages()]
ENTRY = "demo-thinker"
NONE = dict.fromkeys(NAMES, 0)
ONE = dict.fromkeys(NAMES, 1)


# --- what counts as unused

READ = Reading(90.0, 5.0, 1.0, 8.0, in_flight=0.0)
QUIET = [READ, replace(READ, at=105.0)]


def pod(uid: str, *, ready: bool = True, ends: bool = False) -> Manifest:
    metadata: dict[str, Any] = {"uid": uid, "name": uid} | (
        {"deletionTimestamp": "2026-11-21T12:00:00Z"} if ends else {}
    )
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": str(ready)}]}}


def live(**pods: list[Manifest]) -> LiveSet:
    return LiveSet("abc1234", {name: LiveStage(name, pods=found) for name, found in pods.items()})


ALL = {name: [pod(name)] for name in NAMES}
USED = {
    "a call in progress": [READ, replace(READ, at=105.0, in_flight=1.0)],
    "work since the last reading": [READ, replace(READ, at=105.0, ran_s=5.1)],
    "requests that waited": [READ, replace(READ, at=105.0, waited_s=1.1)],
    "a restart": [READ, replace(READ, at=105.0, ran_s=0.0)],
    "a pod that does not count its calls": [replace(one, in_flight=None) for one in QUIET],
    "read once": [READ],
    "not read in this pass": [replace(READ, at=70.0), replace(READ, at=85.0)],
    "never read": [],
}


@each_row("rows", USED)
@each_row("stage", NAMES)
def test_one_pod_is_used_or_not_known(stage: str, rows: str) -> None:
    readings = {**dict.fromkeys(NAMES, QUIET), stage: USED[rows]}
    assert not is_idle(NAMES, live(**ALL), [], readings, at=100.0)


@each_row(
    "pods, idle",
    [
        ([pod("talker")], True),
        ([], False),
        ([pod("talker", ready=False)], False),
        ([pod("talker", ends=True)], False),
        ([pod("talker"), pod("thinker", ready=False)], False),
    ],
    ids=["serves", "none", "starts", "drains", "one of two starts"],
)
def test_the_pods_of_one_stage(pods: list[Manifest], idle: bool) -> None:
    readings = dict.fromkeys(NAMES, QUIET)
    assert is_idle(NAMES, live(**{**ALL, "talker": pods}), [], readings, at=100.0) is idle


def test_another_revision_has_pods() -> None:
    readings = dict.fromkeys(NAMES, QUIET)
    assert is_idle(NAMES, live(**ALL), [live(talker=[])], readings, at=100.0)
    assert not is_idle(NAMES, live(**ALL), [live(talker=[pod("old")])], readings, at=100.0)


def test_the_longest_time_counts() -> None:
    stages = [dict(stage) for stage in SLEEPY]
    assert idle_seconds(make_pipeline(stages)) == 300
    stages[1]["scaling"] = {**stages[1]["scaling"], "idleSeconds": 3600}
    assert idle_seconds(make_pipeline(stages)) == 3600
    short = [{**one, "scaling": {**one["scaling"], "idleSeconds": 60}} for one in SLEEPY]
    assert idle_seconds(make_pipeline(short)) == 60


# --- one number puts all stages to sleep, and wakes them


@each_row(
    "held, asked",
    [
        ({}, ONE),
        ({"thinker": 0, "talker": 3, "token2wav": 2}, NONE),
        ({"thinker": 1, "talker": 0, "token2wav": 0}, ONE),
        ({"thinker": 2, "talker": 3, "token2wav": 9}, {"thinker": 2, "talker": 3, "token2wav": 4}),
        ({"thinker": 1, "talker": 0, "token2wav": 2}, {"thinker": 1, "talker": 1, "token2wav": 2}),
    ],
    ids=["new", "asleep", "woken", "awake", "another stage holds 0"],
)
def test_the_entry_holds_whether_it_sleeps(held: dict[str, int], asked: dict[str, int]) -> None:
    assert ask_replicas(make_pipeline(SLEEPY), held) == asked


def test_zero_without_leave_is_one() -> None:
    """A minReplicas that was 0 when the pipeline fell asleep, and is 1 now, wakes it."""
    stages = [{**stage, "scaling": {"maxReplicas": 4}} for stage in make_stages()]
    assert ask_replicas(make_pipeline(stages), NONE) == ONE


def test_it_drains_like_a_suspended_set() -> None:
    def present(replicas: int, pods: int, name: str) -> LiveStage:
        status = {"observedGeneration": 1, "replicas": pods}
        deployment = {"metadata": {"generation": 1}, "spec": {"replicas": replicas}, "status": status}
        return LiveStage(name, deployment, pods=[pod(f"{name}-{number}") for number in range(pods)])

    drains = LiveSet("abc1234", {"thinker": present(0, 1, "thinker"), "talker": present(3, 3, "talker")})
    found = decide_replicas(make_pipeline(SLEEPY), drains, Fate.RUN, {"thinker": 0})
    assert (found.goal, found.now) == (NONE, {"thinker": 0, "talker": 3, "token2wav": 0})


# --- on the simulated cluster


def sleeping() -> SimulatedCluster:
    cluster = settled(stages=SLEEPY)
    cluster.scale(ENTRY, 0)
    cluster.settle()
    return cluster


def test_to_sleep_and_awake() -> None:
    cluster = settled(stages=SLEEPY)
    revision = cluster.selected() or ""
    assert replicas_of(cluster, revision) == ONE
    cluster.scale(ENTRY, 0)
    cluster.settle()
    assert not cluster.pods
    assert reasons(cluster) == ("Sleeping", "RolloutComplete", "AsExpected")
    assert cluster.condition("Ready")[0] == "True"
    assert {cluster.children[ChildKey("OmniStage", f"demo-{name}")]["spec"]["replicas"] for name in NAMES} == {0}

    cluster.scale(ENTRY, 1)
    step(cluster, "start_pods")
    assert replicas_of(cluster, revision) == ONE, "all stages start together"
    assert reasons(cluster) == ("Waking", "Waking", "AsExpected")
    cluster.settle()
    assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")
    assert "Warning" not in {event.type for event in cluster.events}
    assert told(cluster).count("Sleeping") == told(cluster).count("AllStagesReady") == 1


def test_no_status_on_the_way_calls_it_a_failure() -> None:
    cluster = settled(stages=SLEEPY)
    found = set()
    cluster.after_report.append(lambda: found.add((*reasons(cluster), cluster.condition("Degraded")[0])))
    for number in (0, 1):
        cluster.scale(ENTRY, number)
        cluster.settle()
    assert {one[0] for one in found} == {"Sleeping", "Waking", "AllStagesReady"}
    assert {one[3] for one in found} == {"False"}


def test_a_stage_that_cannot_start_is_named() -> None:
    cluster = sleeping()
    cluster.capacity = 2
    cluster.scale(ENTRY, 1)
    cluster.settle()
    ready = next(item for item in cluster.pipeline["status"]["conditions"] if item["type"] == "Ready")
    assert (ready["reason"], cluster.condition("Degraded")[0]) == ("Waking", "False")
    assert "stage token2wav: " in ready["message"]


def renamed(name: str) -> list[Manifest]:
    return json.loads(json.dumps(SLEEPY).replace(f'"{name}"', '"other"'))


@each_row(
    "edit, entry",
    [
        ({"defaults": {"image": "stage:2"}}, ENTRY),
        ({"stages": renamed("thinker")}, "demo-other"),
        ({"stages": renamed("talker")}, ENTRY),
    ],
    ids=["an image", "a name for the entry", "a name for a stage below"],
)
def test_a_new_revision_while_it_sleeps_starts_no_pod(edit: dict[str, Any], entry: str) -> None:
    cluster = sleeping()
    old = cluster.selected()
    pods: list[int] = []
    cluster.after_report.append(lambda: pods.append(len(cluster.pods)))
    cluster.edit(**edit)
    cluster.settle()
    assert cluster.selected() != old
    assert max(pods) == 0
    assert reasons(cluster) == ("Sleeping", "RolloutComplete", "AsExpected")
    cluster.scale(entry, 1)
    cluster.settle()
    assert reasons(cluster) == ("AllStagesReady", "RolloutComplete", "AsExpected")


@each_row("can_scale", [True, False], ids=["made again", "their kind is gone"])
@each_row("lost", [NAMES[:1], NAMES[1:], NAMES], ids=["the entry's", "those below", "all"])
def test_no_deleted_scale_target_wakes_it_while_one_can_be_made(can_scale: bool, lost: list[str]) -> None:
    cluster = sleeping()
    cluster.can_scale = can_scale
    for name in lost:
        cluster.delete(ChildKey(STAGE_KIND, f"demo-{name}"))
    pods: list[int] = []
    cluster.after_report.append(lambda: pods.append(len(cluster.pods)))
    cluster.settle()
    if can_scale or NAMES[0] not in lost:
        assert (max(pods), reasons(cluster)[0]) == (0, "Sleeping")
        cluster.scale(ENTRY, 1)
        cluster.settle()
    assert reasons(cluster)[0] == "AllStagesReady"


@pytest.mark.parametrize("edit", [{"suspend": True}, {"stages": make_stages()}], ids=["suspend", "fixed replicas"])
def test_the_spec_goes_before_sleep(edit: dict[str, Any]) -> None:
    cluster = sleeping()
    cluster.edit(**edit)
    cluster.settle()
    assert reasons(cluster)[0] == ("Suspended" if "suspend" in edit else "AllStagesReady")


class Sleepers(RuleBasedStateMachine):
    """Sleep and wake at any moment, among edits, lost pods, a full cluster and an operator that crashes.

    A stage goes to zero only after the stage above it has no pods, so a request in flight always ends where it began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cluster = make_cluster(stages=SLEEPY)
        self.cluster.settle()
        self.cluster.before_write.append(self.check_write)

    @rule(number=st.sampled_from([0, 0, 1, 3]))
    def scale(self, number: int) -> None:
        self.cluster.scale(ENTRY, number)

    @rule(image=st.sampled_from(["stage:1", "stage:2", BAD_IMAGE]))
    def edit_image(self, image: str) -> None:
        self.cluster.edit(defaults={"image": image})

    @rule(capacity=st.sampled_from([None, 2, 6]))
    def edit_capacity(self, capacity: int | None) -> None:
        self.cluster.capacity = capacity

    @rule(most_writes=st.one_of(st.none(), st.integers(0, 20)))
    def operator_round(self, most_writes: int | None) -> None:
        self.cluster.reconcile(most_writes)

    @rule(name=st.sampled_from(SimulatedCluster.STEPS))
    def cluster_step(self, name: str) -> None:
        getattr(self.cluster, name)()

    @rule(rounds=st.integers(1, 6))
    def time_passes(self, rounds: int) -> None:
        for _ in range(rounds):
            step(self.cluster)

    def check_write(self, write: Manifest | Prune) -> None:
        key = write.key if isinstance(write, Prune) else key_of(write)
        before = self.cluster.children.get(key)
        if key.kind != "Deployment" or before is None or not before["spec"]["replicas"]:
            return
        if isinstance(write, Prune) or not write["spec"]["replicas"]:
            stage, revision = member_of(before)
            above = NAMES[: NAMES.index(stage)]
            assert not any(self.cluster.revision_pods(revision, name) for name in above[-1:]), f"{stage} ends too soon"

    def teardown(self) -> None:
        self.cluster.capacity = None
        self.edit_image("stage:1")
        for number, pods, reason in ((0, 0, "Sleeping"), (1, 3, "AllStagesReady")):
            self.cluster.scale(ENTRY, number)
            self.cluster.settle()
            assert reasons(self.cluster) == (reason, "RolloutComplete", "AsExpected")
            assert len(self.cluster.pods) == pods if number == 0 else len(self.cluster.pods) >= pods


Sleepers.TestCase.settings = MACHINE_SETTINGS
TestSleepers = Sleepers.TestCase
