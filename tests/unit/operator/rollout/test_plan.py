"""Plans: which children are written or deleted, in which order, and which objects are never touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_kube.objects import Manifest
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.plan import MAX_RESTORES, Altered, Prune, Verified, compute_plan
from omni_operator.state.observed import Observed
from support.operator.operator_pipelines import OWNER, SETTINGS, build_all, make_pipeline, make_stages
from support.tables import each_row

PIPELINE = {"metadata": {"name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "generation": 1}}
DESIRED = build_all(make_pipeline([{**stage, "replicas": 2} for stage in make_stages()]))
REVISION = compute_revision(make_pipeline(), SETTINGS.default_image)
TALKER = f"demo-talker-{REVISION}"


def make_live(desired: list[Manifest] = DESIRED) -> dict[ChildKey, Manifest]:
    """Returns the children as the API server holds them."""
    live = {}
    for number, child in enumerate(copy.deepcopy(desired)):
        child["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(100 + number), "generation": 1}
        live[key_of(child)] = child
    return live


def observe(live: dict[ChildKey, Manifest], **more: Any) -> Observed:
    return Observed(pipeline=PIPELINE, children=live, **more)


def test_everything_is_missing_and_applied_in_a_safe_order() -> None:
    plan = compute_plan(DESIRED, observe({}))
    kinds = [child["kind"] for child in plan.apply]
    stable = [key_of(child).name for child in plan.apply[-2:]]
    assert stable == ["demo", "demo-headless"], "the entry Services are written last"
    order = ["ServiceAccount", "ConfigMap", "ControllerRevision", "Service", "NetworkPolicy", "Deployment"]
    order += ["PodDisruptionBudget", "PodMonitor"]
    assert sorted(kinds[:-2], key=order.index) == kinds[:-2]
    assert set(plan.why) == {"missing"}
    assert not plan.prune


def test_nothing_differs_nothing_is_written() -> None:
    plan = compute_plan(DESIRED, observe(make_live()))
    assert plan.is_empty
    assert not plan.conflicts


def test_a_hand_edit_is_applied_over() -> None:
    live = make_live()
    live["Deployment", TALKER]["spec"]["replicas"] = 7  # type: ignore[index]
    plan = compute_plan(DESIRED, observe(live))
    assert [key_of(child) for child in plan.apply] == [("Deployment", TALKER)]
    assert plan.why == ("spec.replicas",)


def test_a_field_that_is_no_longer_wanted_is_seen_by_the_hash() -> None:
    live = make_live()
    extra = live["Deployment", TALKER]  # type: ignore[index]
    extra["spec"]["template"]["spec"]["priorityClassName"] = "high"
    extra["metadata"]["annotations"]["omnipipeline.io/desired-hash"] = "of another manifest"
    plan = compute_plan(DESIRED, observe(live))
    assert [key_of(child) for child in plan.apply] == [("Deployment", TALKER)]
    assert plan.why == ("desired",)


def test_annotations_removed_by_hand() -> None:
    live = make_live()
    del live["Service", TALKER]["metadata"]["annotations"]  # type: ignore[index]
    assert compute_plan(DESIRED, observe(live)).why == ("desired",)


FOREIGN: dict[str, tuple[list[dict[str, Any]], str, bool]] = {
    "nobody's": ([], "", False),
    "a Deployment's": (
        [{"kind": "ReplicaSet", "name": "web", "uid": "x", "controller": True}],
        "ReplicaSet web",
        False,
    ),
    "of an owner that does not control": ([{"kind": "OmniPipeline", "name": "demo", "uid": OWNER.uid}], "", False),
    "of a deleted pipeline of this name": (
        [{"kind": "OmniPipeline", "name": "demo", "uid": "before", "controller": True}],
        "OmniPipeline demo",
        True,
    ),
    "of another pipeline": (
        [{"kind": "OmniPipeline", "name": "other", "uid": "o", "controller": True}],
        "OmniPipeline other",
        False,
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_object_is_reported_and_left_alone(name: str) -> None:
    owners, owner, leftover = FOREIGN[name]
    live = make_live()
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo", "uid": "f", "resourceVersion": "1"}}
    if owners:
        foreign["metadata"]["ownerReferences"] = owners  # type: ignore[index]
    live[ChildKey("Service", "demo")] = foreign
    plan = compute_plan(DESIRED, observe(live))
    assert plan.is_empty
    (conflict,) = plan.conflicts
    assert conflict.key == ("Service", "demo")
    assert (conflict.owner, conflict.leftover) == (owner, leftover)


def test_foreign_objects_are_never_pruned() -> None:
    live = make_live()
    stray = {"kind": "ConfigMap", "metadata": {"name": "mine", "uid": "f", "resourceVersion": "1"}}
    live[ChildKey("ConfigMap", "mine")] = stray
    assert compute_plan(DESIRED, observe(live)).is_empty


def test_a_child_that_is_being_deleted_is_waited_for() -> None:
    live = make_live()
    live["Deployment", TALKER]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"  # type: ignore[index]
    plan = compute_plan(DESIRED, observe(live))
    assert plan.is_empty
    assert plan.waiting == (("Deployment", TALKER),)
    gone = [child for child in DESIRED if key_of(child) != ("Deployment", TALKER)]
    assert compute_plan(gone, observe(live)).is_empty, "a child that is being deleted is not deleted again"


def test_prunes_with_preconditions_and_the_snapshot_last() -> None:
    old = build_all(make_pipeline(defaults={"image": "stage:0"}, suspend=True))
    live = make_live(old) | make_live(DESIRED)
    plan = compute_plan(DESIRED, observe(live))
    assert not plan.apply
    assert {prune.key for prune in plan.prune} == {key_of(child) for child in old} - {
        key_of(child) for child in DESIRED
    }
    kinds = [prune.key.kind for prune in plan.prune]
    assert kinds.index("Deployment") < kinds.index("Service") < kinds.index("ConfigMap") < len(kinds) - 1
    assert kinds[-1] == "ControllerRevision"
    first = plan.prune[0]
    metadata = live[first.key]["metadata"]
    assert first == Prune(first.key, metadata["uid"], metadata["resourceVersion"])


def test_what_is_kept_is_not_pruned() -> None:
    live = make_live()
    keep = {ChildKey("Deployment", TALKER)}
    desired = [child for child in DESIRED if key_of(child) not in keep]
    assert compute_plan(desired, observe(live), keep).is_empty
    assert [prune.key for prune in compute_plan(desired, observe(live)).prune] == list(keep)


MOUNTS: dict[str, dict[str, Any]] = {
    "volume": {"volumes": [{"name": "v", "configMap": {"name": "old"}}], "containers": []},
    "projected": {
        "volumes": [{"name": "v", "projected": {"sources": [{"secret": {}}, {"configMap": {"name": "old"}}]}}]
    },
    "envFrom": {"containers": [{"envFrom": [{"configMapRef": {"name": "old"}}]}]},
    "env": {"containers": [{"env": [{"name": "a", "valueFrom": {"configMapKeyRef": {"name": "old", "key": "k"}}}]}]},
    "init": {"initContainers": [{"envFrom": [{"configMapRef": {"name": "old"}}]}]},
}


@each_row("name", MOUNTS)
@each_row("holder", ["pod", "ReplicaSet", "idle ReplicaSet", "Deployment", "nobody"])
def test_a_config_map_stays_as_long_as_it_is_read(name: str, holder: str) -> None:
    live = make_live()
    old = {**copy.deepcopy(next(child for child in DESIRED if child["kind"] == "ConfigMap"))}
    old["metadata"] |= {"name": "old", "uid": "o", "resourceVersion": "9"}
    live[key_of(old)] = old
    template = {"spec": {"template": {"spec": MOUNTS[name]}, "replicas": 0 if holder == "idle ReplicaSet" else 1}}
    pods = [{"metadata": {"name": "p"}, "spec": MOUNTS[name]}] if holder == "pod" else []
    replica_sets = [template] if "ReplicaSet" in holder else []
    if holder == "Deployment":
        live["Deployment", TALKER]["spec"]["template"]["spec"] |= MOUNTS[name]  # type: ignore[index]
    plan = compute_plan(DESIRED, observe(live, pods=pods, replica_sets=replica_sets))
    pruned = [prune.key.name for prune in plan.prune]
    assert pruned == (["old"] if holder in ("nobody", "idle ReplicaSet") else [])


class TestOrphans:
    """Children of the operator without a controller: restored from a backup, or left by a deleted pipeline."""

    def orphans(self) -> dict[ChildKey, Manifest]:
        live = make_live()
        for child in live.values():
            del child["metadata"]["ownerReferences"]
            child["metadata"]["annotations"]["omnipipeline.io/desired-hash"] = "for another uid"
        return live

    def test_all_are_taken_over(self) -> None:
        plan = compute_plan(DESIRED, observe(self.orphans()))
        assert {key_of(child) for child in plan.apply} == {key_of(child) for child in DESIRED}
        assert not plan.conflicts

    def test_those_that_nothing_needs_are_deleted(self) -> None:
        live = self.orphans()
        stray = copy.deepcopy(live[ChildKey("Deployment", TALKER)])
        stray["metadata"]["name"] = "demo-talker-0000000"
        stray["metadata"]["labels"]["omnipipeline.io/revision"] = "0000000"
        live[key_of(stray)] = stray
        assert [prune.key for prune in compute_plan(DESIRED, observe(live)).prune] == [key_of(stray)]

    def test_a_user_s_copy_of_a_child_is_left_alone(self) -> None:
        """`kubectl get service demo -o yaml`, another name and type, `kubectl apply`: labels and annotation stay."""
        live = self.orphans()
        for key in (ChildKey("Service", "demo"), ChildKey("Deployment", TALKER)):
            copied = copy.deepcopy(live[key])
            copied["metadata"]["name"] = f"{key.name}-lb"
            live[key_of(copied)] = copied
        plan = compute_plan(DESIRED, observe(live))
        assert not plan.prune
        assert not plan.conflicts

    @pytest.mark.parametrize("lacks", ["annotation", "label", "name"])
    def test_others_are_conflicts(self, lacks: str) -> None:
        live = self.orphans()
        metadata = live[ChildKey("Service", "demo")]["metadata"]
        if lacks == "annotation":
            metadata["annotations"] = {}
        elif lacks == "label":
            metadata["labels"] = {"app.kubernetes.io/managed-by": "omnipipeline-operator"}
        else:
            metadata["labels"] = {**metadata["labels"], "omnipipeline.io/pipeline": "other"}
        (conflict,) = compute_plan(DESIRED, observe(live)).conflicts
        assert (conflict.key, conflict.owner) == (("Service", "demo"), "")


def test_what_admission_changed_is_reported_and_not_written_again_until_it_is_forgotten() -> None:
    live, verified = make_live(), Verified()
    deployment = live[ChildKey("Deployment", TALKER)]
    deployment["spec"]["replicas"] = 7
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/x:1"
    desired = next(child for child in DESIRED if key_of(child) == ("Deployment", TALKER))
    assert verified.add_applied(desired, deployment), "the change is new"
    assert not verified.add_applied(desired, deployment)
    plan = compute_plan(DESIRED, observe(live), verified=verified)
    assert plan.is_empty
    (altered,) = plan.altered
    assert altered.key == ("Deployment", TALKER)
    assert set(altered.paths) == {"spec.replicas", "spec.template.spec.containers[name=stage].image"}
    verified.forget(altered.uid)
    plan = compute_plan(DESIRED, observe(live), verified=verified)
    assert [key_of(child) for child in plan.apply] == [("Deployment", TALKER)]
    deployment["spec"] = copy.deepcopy(desired["spec"])
    assert verified.add_applied(desired, deployment), "it is no longer changed"
    assert compute_plan(DESIRED, observe(live), verified=verified).altered == ()


def test_fields_that_another_client_sets_again_each_time_are_restored_less_often_and_reported() -> None:
    """As an HPA on a stage's Deployment does: it would start and end pods for ever."""
    now, live = 0.0, make_live()
    verified = Verified(clock=lambda: now)
    key = ChildKey("Deployment", TALKER)
    uid = live[key]["metadata"]["uid"]
    wanted = live[key]["spec"]["replicas"]

    def write(replicas: int) -> None:
        live[key]["spec"]["replicas"] = replicas
        live[key]["metadata"]["resourceVersion"] += "0"

    def contest(pause_s: float) -> str:
        """Changes the number again, and returns what the plan does: restore, or report."""
        nonlocal now
        now += pause_s
        write(wanted + 2)
        plan = compute_plan(DESIRED, observe(live), verified=verified)
        if plan.why:
            write(wanted)
            verified.count_restore(uid, *plan.why)
            return "restore"
        return "report" if plan.altered == (Altered(key, uid, ("spec.replicas",), again=True),) else str(plan)

    assert [contest(15) for _ in range(MAX_RESTORES + 1)] == [*["restore"] * MAX_RESTORES, "report"]
    assert [contest(45), contest(15), contest(100), contest(30)] == ["restore", "report", "report", "restore"]
    # Until the other client has had the time to change it again, it stays reported; then it has given up.
    assert [item.again for item in compute_plan(DESIRED, observe(live), verified=verified).altered] == [True]
    now += 61
    assert compute_plan(DESIRED, observe(live), verified=verified).altered == ()
    # A change of the spec is written at once.
    changed = [copy.deepcopy(child) for child in DESIRED]
    changed[0]["metadata"]["annotations"]["omnipipeline.io/desired-hash"] = "another"
    assert compute_plan(changed, observe(live), verified=verified).why == ("desired",)
    now += 3600
    assert contest(0) == contest(0) == "restore"
