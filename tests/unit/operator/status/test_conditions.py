"""A table of pipeline states, with the conditions Ready, Progressing and Degraded that follow from each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from omni_operator.kinds import ChildKey
from omni_operator.reasons import Reason
from omni_operator.rollout.plan import Altered, ChildConflict
from omni_operator.rollout.rollout import Phase
from omni_operator.scaling.notes import ScaleNotes, StageNote
from omni_operator.state.container_causes import Cause
from omni_operator.status.assessment import Assessment, ChildError, Halt, StageState
from omni_operator.status.capacity import judge_scaling
from omni_operator.status.verdicts import judge
from support.tables import each_row

PULL = Cause(Reason.IMAGE_PULL_BACK_OFF, "image x cannot be pulled")
ROOM = Cause(Reason.UNSCHEDULABLE, "no node with 1 free GPU", hard=False)


def stage(name: str, available: int = 1, wanted: int = 1, cause: Cause | None = None, **more: Any) -> StageState:
    state = StageState(name, "aaaaaaa", wanted, available, available, available > 0, cause)
    return replace(state, **more)


UP = (stage("thinker"), stage("talker"), stage("token2wav"))
DOWN = tuple(replace(item, available=0, reachable=False) for item in UP)
NEW = tuple(replace(item, revision="bbbbbbb") for item in DOWN)
BASE = Assessment(
    pipeline="demo",
    namespace="models",
    suspended=False,
    phase=Phase.COMPLETE,
    serving="aaaaaaa",
    target="aaaaaaa",
    stages=UP,
)
ROLLING = replace(BASE, phase=Phase.ROLLING_OUT, target="bbbbbbb", rising=NEW, waiting_for=("talker (bbbbbbb)",))


def foreign(
    kind: str = "Service", name: str = "demo", owner: str = "", leftover: bool = False
) -> tuple[ChildConflict, ...]:
    return (ChildConflict(ChildKey(kind, name), owner, leftover),)


def broken(stages: tuple[StageState, ...], name: str, cause: Cause, **more: Any) -> tuple[StageState, ...]:
    return tuple(replace(item, cause=cause, **more) if item.name == name else item for item in stages)


RAISED = (Altered(ChildKey("Deployment", "demo-llm-aaaaaaa"), "u", ("spec.replicas",)),)


class Row(NamedTuple):
    """A state, "Ready, Progressing, Degraded", and words that at least one of the three messages has."""

    assessment: Assessment
    expected: str
    words: str


CASES: dict[str, Row] = {
    "complete": Row(BASE, "True AllStagesReady, False RolloutComplete, False AsExpected", "all 3 stages serve"),
    "starts": Row(
        replace(BASE, phase=Phase.STARTING, stages=DOWN),
        "False StagesNotReady, True Starting, False AsExpected",
        "stages thinker, talker, token2wav have no ready pod yet",
    ),
    "starts, one is up": Row(
        replace(BASE, phase=Phase.STARTING, stages=(UP[0], *DOWN[1:2], UP[2])),
        "False StagesNotReady, True Starting, False AsExpected",
        "stage talker has no ready pod yet",
    ),
    "starts without room": Row(
        replace(BASE, phase=Phase.STARTING, stages=broken(DOWN, "talker", ROOM)),
        "False Unschedulable, True Starting, False AsExpected",
        "stage talker: no node with 1 free GPU; stages thinker, token2wav have no ready pod either",
    ),
    "starts without room for longer than it may": Row(
        replace(BASE, phase=Phase.STARTING, stages=broken(DOWN, "talker", replace(ROOM, hard=True))),
        "False Unschedulable, True Starting, True Unschedulable",
        "stage talker: no node with 1 free GPU",
    ),
    "starts with a wrong image": Row(
        replace(BASE, phase=Phase.STARTING, stages=broken(UP, "talker", PULL, available=0, reachable=False)),
        "False ImagePullBackOff, True Starting, True ImagePullBackOff",
        "stage talker: image x cannot be pulled",
    ),
    "of two causes the harder one": Row(
        replace(BASE, phase=Phase.STARTING, stages=broken(broken(DOWN, "thinker", ROOM), "token2wav", PULL)),
        "False ImagePullBackOff, True Starting, True ImagePullBackOff",
        "stage token2wav: image x",
    ),
    "rolls out well": Row(
        ROLLING,
        "True AllStagesReady, True RollingOut, False AsExpected",
        "revision bbbbbbb starts beside aaaaaaa, which serves; waiting for talker (bbbbbbb)",
    ),
    "rolls out, nodes are added": Row(
        replace(ROLLING, rising=broken(NEW, "talker", ROOM)),
        "True AllStagesReady, True RollingOut, False AsExpected",
        "; stage talker: no node with 1 free GPU",
    ),
    "rolls out what is broken": Row(
        replace(ROLLING, rising=broken(NEW, "talker", PULL)),
        "True AllStagesReady, True RollingOut, True ImagePullBackOff",
        "revision bbbbbbb, stage talker: image x cannot be pulled; revision aaaaaaa keeps serving",
    ),
    "no room for two": Row(
        replace(ROLLING, phase=Phase.NEEDS_CAPACITY, rising=broken(NEW, "talker", ROOM)),
        "True AllStagesReady, True RolloutNeedsCapacity, False AsExpected",
        "spec.rollout.strategy: Recreate",
    ),
    "no room for two for longer than it may": Row(
        replace(ROLLING, phase=Phase.NEEDS_CAPACITY, rising=broken(NEW, "talker", replace(ROOM, hard=True))),
        "True AllStagesReady, True RolloutNeedsCapacity, False AsExpected",
        "does not fit beside aaaaaaa",
    ),
    "rolls out while the old one loses a pod": Row(
        replace(ROLLING, stages=broken(UP, "talker", ROOM, available=1, wanted=2)),
        "True AllStagesReady, True RollingOut, True Unschedulable",
        "stage talker: no node",
    ),
    "the Service cannot be switched": Row(
        replace(
            BASE,
            phase=Phase.DRAINING,
            target="bbbbbbb",
            waiting_for=("thinker (aaaaaaa)",),
            errors=(ChildError("Service demo", "exceeded quota: services.loadbalancers"),),
        ),
        "True AllStagesReady, True RollingOut, True ApplyFailed",
        "revision bbbbbbb is ready, but the Service still leads to aaaaaaa; writing Service demo failed",
    ),
    "the old one ends": Row(
        replace(BASE, phase=Phase.DRAINING, waiting_for=("thinker (0000000)",)),
        "True AllStagesReady, True DrainingOldRevision, False AsExpected",
        "the old one drains: thinker (0000000)",
    ),
    "the old one's objects are held": Row(
        replace(BASE, phase=Phase.DRAINING),
        "True AllStagesReady, True DrainingOldRevision, False AsExpected",
        "the old one drains: its objects are being deleted; if that lasts, see their finalizers",
    ),
    "recreated": Row(
        replace(BASE, phase=Phase.WAITING, stages=DOWN, waiting_for=("thinker (0000000)",)),
        "False WaitingForOldRevision, True WaitingForOldRevision, False AsExpected",
        "waiting for thinker (0000000)",
    ),
    "updated in place": Row(
        replace(BASE, phase=Phase.UPDATING, waiting_for=("talker (aaaaaaa)",)),
        "True AllStagesReady, True Updating, False AsExpected",
        "being updated to the spec: talker (aaaaaaa)",
    ),
    "scaled up": Row(
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", available=1, wanted=3),)),
        "True AllStagesReady, True Updating, False AsExpected",
        "being updated to the spec",
    ),
    "ready, but no endpoints yet": Row(
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", reachable=False),)),
        "False StagesNotReady, True Starting, False AsExpected",
        "stage llm has no ready pod yet",
    ),
    "one of three lost": Row(
        replace(BASE, phase=Phase.INCOMPLETE, stages=(stage("llm", available=2, wanted=3),), settled=True),
        "True AllStagesReady, False RolloutComplete, True ReplicasMissing",
        "llm 2 of 3 available",
    ),
    "all lost": Row(
        replace(BASE, phase=Phase.INCOMPLETE, stages=(*UP[:2], DOWN[2]), settled=True),
        "False ReplicasMissing, False RolloutComplete, True ReplicasMissing",
        "token2wav 0 of 1 available",
    ),
    "lost, and no room": Row(
        replace(BASE, phase=Phase.INCOMPLETE, stages=broken(UP, "talker", ROOM, available=0), settled=True),
        "False Unschedulable, False RolloutComplete, True Unschedulable",
        "stage talker: no node with 1 free GPU",
    ),
    "a surplus pod fails while others serve": Row(
        replace(BASE, phase=Phase.UPDATING, stages=broken(UP, "talker", PULL)),
        "True AllStagesReady, True Updating, True ImagePullBackOff",
        "stage talker: image x",
    ),
    "suspending": Row(
        replace(BASE, phase=Phase.SUSPENDING, suspended=True, waiting_for=("talker (aaaaaaa)",)),
        "False Suspended, True Suspending, False AsExpected",
        "spec.suspend is true, pods drain: talker (aaaaaaa)",
    ),
    "suspended": Row(
        replace(BASE, phase=Phase.SUSPENDED, suspended=True, stages=DOWN, settled=True),
        "False Suspended, False Suspended, False AsExpected",
        "set it to false to serve",
    ),
    "a stage without replicas": Row(
        replace(BASE, stages=(*UP[:2], stage("token2wav", wanted=0, available=0))),
        "False ScaledToZero, False RolloutComplete, False AsExpected",
        "stage token2wav has replicas: 0; set it to 1 or more",
    ),
    "scale targets that say 0, and a stage without replicas": Row(
        replace(BASE, stages=(*(replace(one, wanted=0, scaled=True) for one in DOWN[:2]), replace(DOWN[2], wanted=0))),
        "False ScaledToZero, False RolloutComplete, False AsExpected",
        "stages thinker, talker have no pods, because the scale target says 0; let its autoscaler say 1 or more, or: "
        "kubectl scale -n models omnistage/demo-thinker omnistage/demo-talker --replicas=1",
    ),
    "the entry Service is another's": Row(
        replace(BASE, conflicts=foreign(owner="Helm web")),
        "False ChildConflict, True ChildConflict, True ChildConflict",
        "Service demo belongs to Helm web; the operator does not change it. Give the pipeline another name, or, if "
        "nobody needs it: kubectl delete -n models service/demo",
    ),
    "the headless entry Service is another's": Row(
        replace(BASE, conflicts=foreign(name="demo-headless")),
        "False ChildConflict, True ChildConflict, True ChildConflict",
        "Service demo-headless was not made by the operator",
    ),
    "an object is taken after completion": Row(
        replace(BASE, conflicts=foreign("NetworkPolicy", "demo-talker-aaaaaaa"), settled=True),
        "True AllStagesReady, False ChildConflict, True ChildConflict",
        "kubectl delete -n models networkpolicy/demo-talker-aaaaaaa",
    ),
    "the entry has no endpoint yet": Row(
        replace(BASE, entry_problem="Service demo has no ready endpoint"),
        "False EntryNotReady, True EntryNotReady, False AsExpected",
        "Service demo has no ready endpoint: clients cannot connect",
    ),
    "the entry is lost": Row(
        replace(BASE, entry_problem="Service demo does not exist", settled=True),
        "False EntryNotReady, False EntryNotReady, True EntryNotReady",
        "Service demo does not exist: clients cannot connect",
    ),
    "the entry is refused": Row(
        replace(
            BASE,
            entry_problem="Service demo does not exist",
            unwritten="not all objects are written yet",
            errors=(ChildError("Service demo", "exceeded quota: services"),),
        ),
        "False ApplyFailed, True ApplyFailed, True ApplyFailed",
        "clients cannot connect; writing Service demo failed: exceeded quota: services",
    ),
    "a stage's Service is gone": Row(
        replace(BASE, stages=(UP[0], replace(UP[1], reachable=False, problem="Service t does not exist"), UP[2])),
        "False StagesNotReady, False RolloutComplete, False AsExpected",
        "pods are ready, but cannot be reached: stage talker: Service t does not exist",
    ),
    "a child is being deleted": Row(
        replace(BASE, unwritten="Service demo is being deleted, and is made again once it is gone", settled=True),
        "True AllStagesReady, False Updating, False AsExpected",
        "Service demo is being deleted",
    ),
    "updated in place, but no room": Row(
        replace(BASE, phase=Phase.UPDATING, stages=broken(UP, "talker", ROOM), waiting_for=("talker (aaaaaaa)",)),
        "True AllStagesReady, True Updating, False AsExpected",
        "being updated to the spec: talker (aaaaaaa); stage talker: no node with 1 free GPU",
    ),
    "starts, with its cause in Progressing too": Row(
        replace(BASE, phase=Phase.STARTING, stages=broken(DOWN, "talker", ROOM)),
        "False Unschedulable, True Starting, False AsExpected",
        "pods of revision aaaaaaa are starting; stage talker: no node with 1 free GPU",
    ),
    "suspending, held by a policy": Row(
        replace(BASE, phase=Phase.SUSPENDING, suspended=True, waiting_for=("llm (aaaaaaa)",), altered=RAISED),
        "False Suspended, True Suspending, True ChangedByAdmission",
        "pods drain: llm (aaaaaaa); admission (a webhook or policy) changes what the operator writes: "
        "Deployment demo-llm-aaaaaaa (spec.replicas)",
    ),
    "retiring, held by a policy": Row(
        replace(BASE, phase=Phase.DRAINING, waiting_for=("llm (0000000)",), altered=RAISED),
        "True AllStagesReady, True DrainingOldRevision, True ChangedByAdmission",
        "the old one drains: llm (0000000); admission",
    ),
    "retiring, and a node is lost": Row(
        replace(
            BASE,
            phase=Phase.DRAINING,
            waiting_for=("llm (0000000)",),
            ending=(stage("llm", cause=Cause(Reason.NODE_LOST, "node n does not answer")),),
        ),
        "True AllStagesReady, True DrainingOldRevision, False AsExpected",
        "the old one drains: llm (0000000); stage llm: node n does not answer",
    ),
    "images are rewritten": Row(
        replace(BASE, altered=(Altered(ChildKey("Deployment", "d"), "u", ("spec.template.spec.containers",)),)),
        "True AllStagesReady, False RolloutComplete, False ChangedByAdmission",
        "nothing failed, but admission (a webhook or policy) changes what the operator writes: Deployment d",
    ),
    "an autoscaler scales the Deployment of a stage": Row(
        replace(BASE, altered=(RAISED[0]._replace(again=True),), settled=True),
        "True AllStagesReady, False ChangedByOthers, True ChangedByOthers",
        "Deployment demo-llm-aaaaaaa (spec.replicas) again after each write of the operator",
    ),
    "a volume is dropped": Row(
        replace(
            BASE,
            altered=(Altered(ChildKey("Deployment", "d"), "u", ("spec.template.spec.volumes[name=weights]",)),),
            settled=True,
        ),
        "True AllStagesReady, False ChangedByAdmission, True ChangedByAdmission",
        "Deployment d (spec.template.spec.volumes[name=weights]); enable ImageVolume",
    ),
    "invalid, and it serves": Row(
        replace(BASE, halt=Halt(Reason.INVALID_SPEC, "the spec is not valid")),
        "True AllStagesReady, False InvalidSpec, True InvalidSpec",
        "the spec is not valid",
    ),
    "invalid, and nothing serves": Row(
        replace(BASE, stages=(), halt=Halt(Reason.INVALID_SPEC, "the spec is not valid")),
        "False InvalidSpec, False InvalidSpec, True InvalidSpec",
        "the spec is not valid",
    ),
    "invalid, and a stage is down": Row(
        replace(BASE, stages=(*UP[:2], DOWN[2]), halt=Halt(Reason.INVALID_SPEC, "the spec is not valid")),
        "False InvalidSpec, False InvalidSpec, True InvalidSpec",
        "stage token2wav has no ready pod; the spec is not valid",
    ),
    "being deleted": Row(
        replace(BASE, halt=Halt(Reason.TERMINATING, "the pipeline is being deleted")),
        "False Terminating, True Terminating, False Terminating",
        "the pipeline is being deleted",
    ),
    "a Deployment is nobody's": Row(
        replace(BASE, phase=Phase.STARTING, stages=DOWN, conflicts=foreign("Deployment", "demo-talker-aaaaaaa") * 3),
        "False ChildConflict, True Starting, True ChildConflict",
        "Deployment demo-talker-aaaaaaa was not made by the operator, and 2 more of the pipeline's names are taken",
    ),
    "children of a deleted pipeline": Row(
        replace(BASE, phase=Phase.STARTING, stages=DOWN, conflicts=foreign(leftover=True) * 3),
        "False StagesNotReady, True Starting, False AsExpected",
        "no ready pod yet; wait: objects of a deleted pipeline of this name are removed first",
    ),
    "a write is refused": Row(
        replace(BASE, phase=Phase.STARTING, stages=DOWN, errors=(ChildError("Deployment a", "denied\n by policy"),)),
        "False ApplyFailed, True Starting, True ApplyFailed",
        "writing Deployment a failed: denied by policy; the operator retries",
    ),
}


@each_row("name", CASES)
def test_verdicts(name: str) -> None:
    assessment, expected, words = CASES[name]
    verdicts = judge(assessment)
    found = {kind: f"{verdict.holds} {verdict.reason}" for kind, verdict in verdicts.items()}
    spec = found.pop("SpecUnderstood", None)
    assert ", ".join(found[kind] for kind in ("Ready", "Progressing", "Degraded")) == expected
    assert (spec is not None) == ("InvalidSpec" in expected)
    assert any(words in verdict.message for verdict in verdicts.values())


def test_likely_mistakes_of_the_spec_are_named_without_a_failure() -> None:
    verdicts = judge(replace(BASE, mistakes=("spec.stages[0].component: generic/llmm is not built in",)))
    degraded = verdicts["Degraded"]
    assert (degraded.holds, degraded.reason) == (False, "AsExpected")
    assert degraded.message == "nothing failed, but spec.stages[0].component: generic/llmm is not built in"


def test_unknown_fields_are_named_in_a_condition_of_their_own() -> None:
    verdicts = judge(replace(BASE, ignored=("spec.scaling", "spec.stages[0].lora")))
    assert verdicts["Ready"].holds
    assert verdicts["Degraded"] == judge(BASE)["Degraded"]
    spec = verdicts["SpecUnderstood"]
    assert (spec.holds, spec.reason) == (False, "UnknownFields")
    assert "spec.scaling, spec.stages[0].lora" in spec.message


def test_a_message_about_many_conflicts_names_some_and_counts_all() -> None:
    taken = tuple(ChildConflict(ChildKey("Service", f"demo-{number}"), "") for number in range(30))
    message = judge(replace(BASE, conflicts=taken))["Degraded"].message
    assert "and 29 more of the pipeline's names are taken" in message
    assert message.endswith("service/demo-7 and so on for all 30")


@pytest.mark.parametrize(
    ("stages", "remedy"),
    [
        (UP, "check that no NetworkPolicy keeps it from their port 9090"),
        ((*UP[:2], DOWN[2]), "check that no NetworkPolicy keeps it from their port 9090"),
        ((UP[0], *DOWN[1:]), "that needs ready pods, see Ready"),
    ],
)
def test_an_unknown_load_names_what_is_in_the_way(stages: tuple[StageState, ...], remedy: str) -> None:
    notes = ScaleNotes(stages={name: StageNote(1) for name in ("talker", "token2wav")})
    verdict = judge_scaling(replace(BASE, stages=stages, scale=notes))
    assert verdict is not None
    assert verdict.reason is Reason.LOAD_UNKNOWN
    assert verdict.message.endswith(remedy)
