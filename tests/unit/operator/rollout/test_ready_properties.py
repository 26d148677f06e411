"""Ready and RolloutComplete are never claimed on less than a client needs, whatever is deleted, refused or unreadable.

Hypothesis takes the steps of the rollout tests, and in addition deletes snapshots and any other child, holds children
with a finalizer, takes their owner away, turns their selectors, refuses writes, and gives specs that the operator does
not understand.

ready_checks.py says what the two claim. When the disturbances end, the cluster settles with only the children of the
revision of the spec. The second test tries each disturbance of each child in each phase.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import ChildKey
from omni_operator.rollout.decide import parse_live_pipeline
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import PIPELINE_LABEL, REVISION_LABEL
from support.operator.ready_checks import check_conditions, is_held
from support.operator.rollout_machine import GRAPHS, MACHINE_SETTINGS, Rollouts
from support.operator.rollout_scenarios import make_cluster, step
from support.operator.simulated_cluster import SimulatedCluster
from support.tables import each_row

KINDS = ["ConfigMap", "ControllerRevision", "Deployment", "NetworkPolicy", "Service", "ServiceAccount"]


class Disturbances(Rollouts):
    """The steps of `Rollouts`, with disturbances of every kind of child in any phase."""

    @initialize()
    def begin(self) -> None:
        self.disturbed = True
        self.understood = True
        self.cluster.settle()
        self.cluster.after_report.append(self.check_conditions)

    # --- disturbances

    @precondition(lambda self: self.cluster.children)
    @rule(kind=st.sampled_from(KINDS), index=st.integers(0, 1000))
    def delete_child_of_kind(self, kind: str, index: int) -> None:
        if (key := self.pick(kind, index)) is not None:
            self.cluster.delete(key)

    @precondition(lambda self: self.cluster.children)
    @rule(kind=st.sampled_from(KINDS), index=st.integers(0, 1000))
    def hold_child(self, kind: str, index: int) -> None:
        """A child is deleted, but a finalizer holds it."""
        if (key := self.pick(kind, index)) is not None:
            self.cluster.children[key]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"

    @rule()
    def release_children(self) -> None:
        for key in [key for key, child in self.cluster.children.items() if is_held(child)]:
            self.cluster.delete(key)

    @precondition(lambda self: self.cluster.children)
    @rule(kind=st.sampled_from(KINDS), index=st.integers(0, 1000))
    def orphan_child(self, kind: str, index: int) -> None:
        if (key := self.pick(kind, index)) is not None:
            self.cluster.children[key]["metadata"].pop("ownerReferences", None)

    @precondition(lambda self: self.cluster.children)
    @rule(index=st.integers(0, 1000), revision=st.sampled_from(["none", "fffffff"]))
    def turn_selector(self, index: int, revision: str) -> None:
        if (key := self.pick("Service", index)) is not None:
            self.cluster.children[key]["spec"]["selector"] = {
                **self.cluster.children[key]["spec"]["selector"],
                REVISION_LABEL: revision,
            }

    @rule(kinds=st.sets(st.sampled_from(KINDS), max_size=2))
    def refuse_writes(self, kinds: set[str]) -> None:
        self.cluster.refused = kinds

    @rule(understood=st.booleans())
    def edit_by_another_version(self, understood: bool) -> None:
        """The spec has a value that the operator does not know, or only unknown fields."""
        self.understood = understood
        self.cluster.edit(timeouts={"request": 100} if understood else {"request": "Automatic"}, scaling={"min": 1})

    # --- what must hold

    def check_conditions(self) -> None:
        check_conditions(self.cluster, self.specs, self.latest)

    def teardown(self) -> None:
        self.cluster.refused = set()
        self.edit_by_another_version(True)
        self.release_children()
        self.edit(scaling=None)
        super().teardown()

    # --- of these, `Rollouts` takes care: a set whose snapshot is lost ends at once

    def check_end(self, stage: str, revision: str) -> None:
        """Does nothing."""

    def check_switch(self, before: str | None, after: str) -> None:
        """Does nothing."""

    def note_available(self) -> None:
        """Does nothing."""

    def check_downstreams_exist(self) -> None:
        """Does nothing."""

    def remember(self) -> None:
        if getattr(self, "understood", True):
            super().remember()

    def edit(self, **spec: Any) -> None:
        self.cluster.edit(**spec)
        self.remember()

    def pick(self, kind: str, index: int) -> ChildKey | None:
        keys = sorted(key for key in self.cluster.children if key.kind == kind)
        return keys[index % len(keys)] if keys else None


Disturbances.TestCase.settings = MACHINE_SETTINGS
TestDisturbances = Disturbances.TestCase


Spec = dict[str, Any]
PHASES: dict[str, tuple[Spec, int]] = {
    # name: (the edit of a pipeline that serves, the rounds before the disturbance)
    "complete": ({}, 0),
    "updating": ({"timeouts": {"request": 60}}, 2),
    "rolling out": ({"defaults": {"image": "stage:2"}}, 2),
    "draining": ({"defaults": {"image": "stage:2"}}, 6),
    "broken target": ({"defaults": {"image": "broken:1"}}, 9),
    "recreating": ({"defaults": {"image": "stage:2"}, "rollout": {"strategy": "Recreate"}}, 5),
    "suspending": ({"suspend": True}, 1),
    "not understood": ({"timeouts": {"request": "Automatic"}}, 3),
    "unknown fields": ({"scaling": {"minimum": 1}}, 3),
}


def lose(cluster: SimulatedCluster, key: ChildKey) -> None:
    """The child is deleted, and may not be created again."""
    cluster.delete(key)
    cluster.refused = {key.kind}


def hold(cluster: SimulatedCluster, key: ChildKey) -> None:
    """The child is deleted, but held by a finalizer."""
    cluster.children[key]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"


def turn(cluster: SimulatedCluster, key: ChildKey) -> None:
    """A Service selects the pods of all stages, and may not be changed back."""
    cluster.children[key]["spec"]["selector"] = {PIPELINE_LABEL: "demo"}
    cluster.refused = {"Service"}


def reroute(cluster: SimulatedCluster, key: ChildKey) -> None:
    """A Service keeps its selector, but has another port, and may not be changed back."""
    cluster.children[key]["spec"]["ports"] = [{"name": "grpc", "port": 80, "targetPort": "http"}]
    cluster.refused = {"Service"}


def lose_with_snapshots(cluster: SimulatedCluster, key: ChildKey) -> None:
    """The child and every snapshot are deleted, and no object may be created."""
    cluster.delete(key)
    for snapshot in [one for one in cluster.children if one.kind == "ControllerRevision"]:
        cluster.delete(snapshot)
    cluster.refused = set(KINDS)


EACH_RUN = ("complete", "rolling out", "recreating", "not understood")
"""Phases that are not left to `make full`. The steps of `Disturbances` meet each phase too."""
AFFECTED = {turn: ["Service"], reroute: ["Service"], lose_with_snapshots: ["Deployment", "Service"]}
"""The kinds of child that a disturbance is about; all by default."""


@each_row("disturb", [lose, hold, turn, reroute, lose_with_snapshots], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "phase", [one if one in EACH_RUN else pytest.param(one, marks=pytest.mark.full) for one in PHASES]
)
def test_every_child_in_every_phase(phase: str, disturb: Callable[[SimulatedCluster, ChildKey], None]) -> None:
    base, by_revision, target = reach(phase)
    for key in sorted(base.children):
        if key.kind not in AFFECTED.get(disturb, KINDS):
            continue
        cluster = copy.deepcopy(base)
        disturb(cluster, key)
        for _ in range(2):
            step(cluster)
            check_conditions(cluster, by_revision, target)


@cache
def reach(phase: str) -> tuple[SimulatedCluster, dict[str, OmniPipeline], str]:
    """Returns a cluster in that phase, which must not be changed, its specs by revision, and the target."""
    edit, rounds = PHASES[phase]
    base = make_cluster(stages=GRAPHS["two"])
    base.settle()
    specs = [parse_live_pipeline(base.pipeline)]
    base.edit(**edit)
    if phase != "not understood":
        specs.append(parse_live_pipeline(base.pipeline))
    for _ in range(rounds):
        step(base, "end_pods")
    return base, {compute_revision(spec, ""): spec for spec in specs}, compute_revision(specs[-1], "")
