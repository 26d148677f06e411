"""Conditions, status and Events: verdicts by table; what is written twice is equal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_operator.kinds import ChildKey
from omni_operator.reasons import EXPLANATIONS, Reason
from omni_operator.rollout.plan import Conflict
from omni_operator.rollout.rollout import Phase
from omni_operator.state.container_causes import Cause
from omni_operator.state.observed import Observed
from omni_operator.state.pod_causes import _RANKS
from omni_operator.status.conditions import Verdict, bound, set_conditions
from omni_operator.status.events import EventData, compute_events
from omni_operator.status.status import compute_invalid_status
from omni_operator.status.verdicts import Assessment, ChildError, StageState, judge
from omni_proto.pipeline.types.status import PipelineStatus

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
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
    # name: assessment, Ready, Progressing, Degraded, words of the most telling message
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
        "Service demo belongs to Helm web and is left alone; delete or rename it",
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
        "no ready pod yet; wait, objects of a deleted pipeline of this name are removed first",
    ),
    "a write is refused": (
        replace(BASE, phase=Phase.STARTING, stages=DOWN, errors=(ChildError("Deployment a", "denied\n by policy"),)),
        "False ApplyFailed",
        "True Starting",
        "True ApplyFailed",
        "the API server refuses Deployment a: denied by policy; it is tried again",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_verdicts(name: str) -> None:
    assessment, ready, progressing, degraded, words = CASES[name]
    verdicts = judge(assessment)
    found = {kind: f"{verdict.holds} {verdict.reason}" for kind, verdict in verdicts.items()}
    assert found == {"Ready": ready, "Progressing": progressing, "Degraded": degraded}
    assert any(words in verdict.message for verdict in verdicts.values())


class TestConditions:
    """The one setter."""

    VERDICTS = {kind: Verdict(True, Reason.STARTING, "m") for kind in ("Ready", "Progressing", "Degraded")}

    def test_time_moves_only_when_the_status_flips(self) -> None:
        first = set_conditions([], self.VERDICTS, 1, NOW)
        later = NOW + timedelta(minutes=5)
        reworded = {**self.VERDICTS, "Ready": Verdict(True, Reason.UPDATING, "other")}
        second = set_conditions(first, reworded, 2, later)
        assert second[0]["lastTransitionTime"] == "2026-11-21T12:00:00Z"
        assert (second[0]["reason"], second[0]["message"], second[0]["observedGeneration"]) == ("Updating", "other", 2)
        third = set_conditions(second, {**self.VERDICTS, "Ready": Verdict(False, Reason.UPDATING, "")}, 2, later)
        assert third[0]["lastTransitionTime"] == "2026-11-21T12:05:00Z"
        assert third[1:] == [{**item, "observedGeneration": 2} for item in first[1:]]

    def test_messages_are_bounded(self) -> None:
        (ready, *_) = set_conditions([], {**self.VERDICTS, "Ready": Verdict(True, Reason.STARTING, "é" * 9999)}, 1, NOW)
        assert len(ready["message"].encode()) <= 1024
        assert ready["message"].endswith("...")
        assert bound("short") == "short"


class TestInvalidSpec:
    """A spec that an older CRD let in."""

    def test_what_ran_is_still_told(self) -> None:
        previous = {"readyStages": "3/3", "stages": [{"name": "thinker"}]}
        metadata = {"name": "demo", "namespace": "models", "uid": "u", "generation": 4}
        observed = Observed({"metadata": metadata, "status": previous})
        status = compute_invalid_status(observed, "spec.stages: too many", NOW)
        assert status["readyStages"] == "3/3"
        assert status["stages"] == previous["stages"]
        reasons = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
        assert reasons["Ready"] == ("False", "InvalidSpec")
        assert reasons["Degraded"] == ("True", "InvalidSpec")
        assert "spec.stages: too many" in status["conditions"][0]["message"]
        PipelineStatus.model_validate(status)
        assert (
            compute_invalid_status(Observed({"metadata": metadata, "status": status}), "spec.stages: too many", NOW)
            == status
        )


def status_of(ready: str, progressing: str, degraded: str) -> dict[str, Any]:
    texts = {"Ready": ready, "Progressing": progressing, "Degraded": degraded}
    conditions = [
        {"type": kind, "status": text.split()[0], "reason": text.split()[1], "message": f"about {kind}"}
        for kind, text in texts.items()
    ]
    return {"conditions": conditions}


GOOD = status_of("True AllStagesReady", "False RolloutComplete", "False AsExpected")
STARTS = status_of("False StagesNotReady", "True Starting", "False AsExpected")
BROKEN = status_of("False ImagePullBackOff", "True Starting", "True ImagePullBackOff")
EVENTS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], list[str]]] = {
    "created": (None, STARTS, ["Normal Starting"]),
    "created broken": (None, BROKEN, ["Warning ImagePullBackOff", "Normal Starting"]),
    "ready": (STARTS, GOOD, ["Normal AllStagesReady", "Normal RolloutComplete"]),
    "breaks": (STARTS, BROKEN, ["Warning ImagePullBackOff"]),
    "nothing changes": (BROKEN, BROKEN, []),
    "another cause": (
        BROKEN,
        status_of("False OOMKilled", "True Starting", "True OOMKilled"),
        ["Warning OOMKilled"],
    ),
    "recovers": (BROKEN, GOOD, ["Normal AsExpected", "Normal AllStagesReady", "Normal RolloutComplete"]),
    "needs capacity": (
        GOOD,
        status_of("True AllStagesReady", "True RolloutNeedsCapacity", "False AsExpected"),
        ["Warning RolloutNeedsCapacity"],
    ),
    "waits for room": (
        STARTS,
        status_of("False Unschedulable", "True Starting", "False AsExpected"),
        ["Warning Unschedulable"],
    ),
    "suspended": (
        GOOD,
        status_of("False Suspended", "True Suspending", "False AsExpected"),
        ["Normal Suspended", "Normal Suspending"],
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    before, after, expected = EVENTS[name]
    events = compute_events(before, after)
    assert [f"{event.type} {event.reason}" for event in events] == expected
    assert all(isinstance(event, EventData) and event.message for event in events)


class TestReasons:
    """The constants and their table."""

    def test_every_reason_is_explained(self) -> None:
        assert set(EXPLANATIONS) == set(Reason)

    def test_every_cause_of_pods_has_a_rank(self) -> None:
        pods = [reason for reason in Reason if list(Reason).index(reason) >= list(Reason).index(Reason.UNSCHEDULABLE)]
        assert set(_RANKS) == set(pods)
        assert len(_RANKS) == len(set(_RANKS))

    def test_reasons_fit_the_api(self) -> None:
        assert all(reason[0].isupper() and reason.isalnum() for reason in Reason)
