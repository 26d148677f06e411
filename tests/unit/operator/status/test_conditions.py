"""A table of pipeline states, with the conditions Ready, Progressing and Degraded that follow from each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_operator.kinds import ChildKey
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Conflict
from omni_operator.rollout.rollout import Phase
from omni_operator.state.container_causes import Cause
from omni_operator.status.verdicts import Assessment, ChildError, StageState, judge

PULL = Cause(Reason.IMAGE_PULL_BACK_OFF, "image x cannot be pulled")
ROOM = Cause(Reason.UNSCHEDULABLE, "no node with 1 free GPU", hard=False)


def stage(name: str, available: int = 1, wanted: int = 1, cause: Cause | None = None, **more: Any) -> StageState:
    state = StageState(name, "aaaaaaa", wanted, available, available, available > 0, cause)
    return replace(state, **more)


UP = (stage("thinker"), stage("talker"), stage("token2wav"))
DOWN = tuple(replace(item, available=0, reachable=False) for item in UP)
NEW = tuple(replace(item, revision="bbbbbbb") for item in DOWN)
BASE = Assessment(
    pipeline="demo", suspended=False, phase=Phase.COMPLETE, serving="aaaaaaa", target="aaaaaaa", stages=UP
)
ROLLING = replace(BASE, phase=Phase.ROLLING_OUT, target="bbbbbbb", rising=NEW, waiting_for=("talker (bbbbbbb)",))


def foreign(kind: str = "Service", name: str = "demo", owner: str = "", leftover: bool = False) -> tuple[Conflict, ...]:
    return (Conflict(ChildKey(kind, name), owner, leftover),)


def broken(stages: tuple[StageState, ...], name: str, cause: Cause, **more: Any) -> tuple[StageState, ...]:
    return tuple(replace(item, cause=cause, **more) if item.name == name else item for item in stages)


TF = {True: "True", False: "False"}
CASES: dict[str, tuple[Assessment, str, str, str, str]] = {
    # name: (assessment, Ready, Progressing, Degraded, words that at least one of the three messages has)
    "complete": (BASE, "True AllStagesReady", "False RolloutComplete", "False AsExpected", "all 3 stages serve"),
    "starts": (
        replace(BASE, phase=Phase.STARTING, stages=DOWN),
        "False StagesNotReady",
        "True Starting",
        "False AsExpected",
        "stages thinker, talker, token2wav have no ready pod yet",
    ),
    "starts, one is up": (
        replace(BASE, phase=Phase.STARTING, stages=(UP[0], *DOWN[1:2], UP[2])),
        "False StagesNotReady",
        "True Starting",
        "False AsExpected",
        "stage talker has no ready pod yet",
    ),
    "starts without room": (
        replace(BASE, phase=Phase.STARTING, stages=broken(DOWN, "talker", ROOM)),
        "False Unschedulable",
        "True Starting",
        "False AsExpected",
        "stage talker: no node with 1 free GPU; stages thinker, token2wav have no ready pod either",
    ),
    "starts without room for longer than it may": (
        replace(BASE, phase=Phase.STARTING, stages=broken(DOWN, "talker", replace(ROOM, hard=True))),
        "False Unschedulable",
        "True Starting",
        "True Unschedulable",
        "stage talker: no node with 1 free GPU",
    ),
    "starts with a wrong image": (
        replace(BASE, phase=Phase.STARTING, stages=broken(UP, "talker", PULL, available=0, reachable=False)),
        "False ImagePullBackOff",
        "True Starting",
        "True ImagePullBackOff",
        "stage talker: image x cannot be pulled",
    ),
    "of two causes the harder one": (
        replace(BASE, phase=Phase.STARTING, stages=broken(broken(DOWN, "thinker", ROOM), "token2wav", PULL)),
        "False ImagePullBackOff",
        "True Starting",
        "True ImagePullBackOff",
        "stage token2wav: image x",
    ),
    "rolls out well": (
        ROLLING,
        "True AllStagesReady",
        "True RollingOut",
        "False AsExpected",
        "revision bbbbbbb starts beside aaaaaaa, which serves; waiting for talker (bbbbbbb)",
    ),
    "rolls out, nodes are added": (
        replace(ROLLING, rising=broken(NEW, "talker", ROOM)),
        "True AllStagesReady",
        "True RollingOut",
        "False AsExpected",
        "; stage talker: no node with 1 free GPU",
    ),
    "rolls out what is broken": (
        replace(ROLLING, rising=broken(NEW, "talker", PULL)),
        "True AllStagesReady",
        "True RollingOut",
        "True ImagePullBackOff",
        "revision bbbbbbb, stage talker: image x cannot be pulled; revision aaaaaaa keeps serving",
    ),
    "no room for two": (
        replace(ROLLING, phase=Phase.NEEDS_CAPACITY, rising=broken(NEW, "talker", ROOM)),
        "True AllStagesReady",
        "True RolloutNeedsCapacity",
        "False AsExpected",
        "spec.rollout.strategy: Recreate",
    ),
    "no room for two for longer than it may": (
        replace(ROLLING, phase=Phase.NEEDS_CAPACITY, rising=broken(NEW, "talker", replace(ROOM, hard=True))),
        "True AllStagesReady",
        "True RolloutNeedsCapacity",
        "False AsExpected",
        "does not fit beside aaaaaaa",
    ),
    "rolls out while the old one loses a pod": (
        replace(ROLLING, stages=broken(UP, "talker", ROOM, available=1, wanted=2)),
        "True AllStagesReady",
        "True RollingOut",
        "True Unschedulable",
        "stage talker: no node",
    ),
    "the old one ends": (
        replace(BASE, phase=Phase.DRAINING, waiting_for=("thinker (0000000)",)),
        "True AllStagesReady",
        "True DrainingOldRevision",
        "False AsExpected",
        "the old one drains: thinker (0000000)",
    ),
    "recreated": (
        replace(BASE, phase=Phase.WAITING, stages=DOWN, waiting_for=("thinker (0000000)",)),
        "False WaitingForOldRevision",
        "True WaitingForOldRevision",
        "False AsExpected",
        "waiting for thinker (0000000)",
    ),
    "updated in place": (
        replace(BASE, phase=Phase.UPDATING, waiting_for=("talker (aaaaaaa)",)),
        "True AllStagesReady",
        "True Updating",
        "False AsExpected",
        "being updated to the spec: talker (aaaaaaa)",
    ),
    "scaled up": (
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", available=1, wanted=3),)),
        "True AllStagesReady",
        "True Updating",
        "False AsExpected",
        "being updated to the spec",
    ),
    "ready, but no endpoints yet": (
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", reachable=False),)),
        "False StagesNotReady",
        "True Starting",
        "False AsExpected",
        "stage llm has no ready pod yet",
    ),
    "one of three lost": (
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", available=2, wanted=3),), settled=True),
        "True AllStagesReady",
        "False RolloutComplete",
        "True ReplicasMissing",
        "llm 2 of 3 available",
    ),
    "all lost": (
        replace(BASE, phase=Phase.INCOMPLETE, stages=(*UP[:2], DOWN[2]), settled=True),
        "False ReplicasMissing",
        "False RolloutComplete",
        "True ReplicasMissing",
        "token2wav 0 of 1 available",
    ),
    "lost, and no room": (
        replace(BASE, phase=Phase.INCOMPLETE, stages=broken(UP, "talker", ROOM, available=0), settled=True),
        "False Unschedulable",
        "False RolloutComplete",
        "True Unschedulable",
        "stage talker: no node with 1 free GPU",
    ),
    "a surplus pod fails while others serve": (
        replace(BASE, phase=Phase.UPDATING, stages=broken(UP, "talker", PULL)),
        "True AllStagesReady",
        "True Updating",
        "True ImagePullBackOff",
        "stage talker: image x",
    ),
    "suspending": (
        replace(BASE, phase=Phase.SUSPENDING, suspended=True, waiting_for=("talker (aaaaaaa)",)),
        "False Suspended",
        "True Suspending",
        "False AsExpected",
        "spec.suspend is true, pods drain: talker (aaaaaaa)",
    ),
    "suspended": (
        replace(BASE, phase=Phase.SUSPENDED, suspended=True, stages=DOWN, settled=True),
        "False Suspended",
        "False Suspended",
        "False AsExpected",
        "set it to false to serve",
    ),
    "a stage without replicas": (
        replace(BASE, stages=(*UP[:2], stage("token2wav", wanted=0, available=0))),
        "False ScaledToZero",
        "False RolloutComplete",
        "False AsExpected",
        "stage token2wav has replicas: 0; set it to 1 or more",
    ),
    "the entry Service is another's": (
        replace(BASE, conflicts=foreign(owner="Helm web")),
        "False ChildConflict",
        "False RolloutComplete",
        "True ChildConflict",
        "Service demo belongs to Helm web and is not changed; delete or rename it",
    ),
    "a Deployment is nobody's": (
        replace(BASE, phase=Phase.STARTING, stages=DOWN, conflicts=foreign("Deployment", "demo-talker-aaaaaaa") * 3),
        "False ChildConflict",
        "True Starting",
        "True ChildConflict",
        "Deployment demo-talker-aaaaaaa was not made by this pipeline (and 2 more)",
    ),
    "children of a deleted pipeline": (
        replace(BASE, phase=Phase.STARTING, stages=DOWN, conflicts=foreign(leftover=True) * 3),
        "False StagesNotReady",
        "True Starting",
        "False AsExpected",
        "no ready pod yet; wait: objects of a deleted pipeline of this name are removed first",
    ),
    "a write is refused": (
        replace(BASE, phase=Phase.STARTING, stages=DOWN, errors=(ChildError("Deployment a", "denied\n by policy"),)),
        "False ApplyFailed",
        "True Starting",
        "True ApplyFailed",
        "writing Deployment a failed: denied by policy; the operator retries",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    assessment, ready, progressing, degraded, words = CASES[name]
    verdicts = judge(assessment)
    found = {kind: f"{verdict.holds} {verdict.reason}" for kind, verdict in verdicts.items()}
    assert found == {"Ready": ready, "Progressing": progressing, "Degraded": degraded}
    assert any(words in verdict.message for verdict in verdicts.values())
