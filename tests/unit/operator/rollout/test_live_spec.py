"""Which spec is in force: the live one, or the last that the operator accepted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from omni_kube.objects import Manifest
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import ChildKey
from omni_operator.rollout.decide import parse_live_pipeline, read_live_spec
from omni_operator.state.observed import Observed
from omni_proto.pod_contract import REVISION_LABEL
from support.operator.rollout_scenarios import make_cluster, settled, step
from support.operator.simulated_cluster import SimulatedCluster

UNKNOWN = {"rollout": {"strategy": "Canary"}}


def snapshots(cluster: SimulatedCluster) -> list[Manifest]:
    return [child for key, child in cluster.children.items() if key.kind == "ControllerRevision"]


def test_unknown_fields_are_ignored_and_named() -> None:
    cluster = settled()
    expected = read_live_spec(cluster.observe(), "")
    cluster.pipeline["spec"]["scaling"] = {"minimum": 1}
    for stage in cluster.pipeline["spec"]["stages"]:
        stage["adapters"] = "none"
    spec = read_live_spec(cluster.observe(), "")
    assert (spec.pipeline, spec.revision, spec.problem) == (expected.pipeline, expected.revision, "")
    assert set(spec.ignored) == {"spec.scaling", *(f"spec.stages[{index}].adapters" for index in range(3))}
    writes = cluster.writes
    cluster.settle()
    assert cluster.writes == writes, "nothing is written because of them"
    assert cluster.condition("SpecUnderstood") == ("False", "UnknownFields")
    assert cluster.condition("Ready") == ("True", "AllStagesReady")


def test_a_new_pipeline_with_unknown_fields_gets_its_children() -> None:
    cluster = make_cluster(scaling={"minimum": 1})
    cluster.settle()
    assert cluster.condition("Ready") == ("True", "AllStagesReady")


def test_a_new_pipeline_that_is_not_understood_gets_none() -> None:
    cluster = make_cluster(**UNKNOWN)
    cluster.settle()
    assert not cluster.children
    assert [cluster.condition(kind) for kind in ("Ready", "Progressing", "Degraded", "SpecUnderstood")] == [
        ("False", "InvalidSpec"),
        ("False", "InvalidSpec"),
        ("True", "InvalidSpec"),
        ("False", "InvalidSpec"),
    ]


def test_the_last_accepted_spec_is_healed_and_nothing_else_is_written() -> None:
    cluster = settled()
    writes, revision = cluster.writes, cluster.selected()
    cluster.edit(**UNKNOWN)
    cluster.settle()
    assert cluster.writes == writes
    assert (cluster.condition("Ready")[0], cluster.condition("Degraded")) == ("True", ("True", "InvalidSpec"))
    cluster.delete(ChildKey("Deployment", f"demo-talker-{revision}"))
    cluster.delete(ChildKey("Service", "demo"))
    cluster.settle()
    assert cluster.writes == writes + 2
    assert cluster.condition("Ready")[0] == "True"
    cluster.edit(rollout=None)
    cluster.settle()
    assert (cluster.condition("Degraded"), cluster.selected()) == (("False", "AsExpected"), revision)


def test_a_rollout_that_has_begun_goes_to_its_end() -> None:
    cluster = settled()
    old = cluster.selected()
    cluster.edit(defaults={"image": "stage:2"})
    step(cluster)
    cluster.edit(**UNKNOWN)
    cluster.settle()
    target = compute_revision(parse_live_pipeline(settled(defaults={"image": "stage:2"}).pipeline), "")
    assert cluster.selected() == target != old
    assert cluster.revisions() == {target}


def test_what_serves_wins_if_two_specs_have_the_same_generation() -> None:
    """The operator's default image changed: both snapshots are of the same edit."""
    cluster = settled()
    observed = cluster.observe()
    (own,) = snapshots(cluster)
    other = copy.deepcopy(own)
    other["metadata"] |= {"name": own["metadata"]["name"].replace(own["metadata"]["labels"][REVISION_LABEL], "fffffff")}
    children = {**observed.children, ChildKey("ControllerRevision", other["metadata"]["name"]): other}
    pipeline = {**observed.pipeline, "spec": {**observed.pipeline["spec"], **UNKNOWN}}
    spec = read_live_spec(Observed(pipeline, children), "")
    assert spec.revision == cluster.selected()


@pytest.mark.parametrize("data", [None, {}, {"spec": None}, {"spec": {"stages": "?"}}, {"spec": {"rollout": 5}}])
def test_a_snapshot_that_cannot_be_read_is_no_spec(data: Any) -> None:
    cluster = settled()
    for snapshot in snapshots(cluster):
        snapshot["data"] = data
    cluster.edit(**UNKNOWN)
    spec = read_live_spec(cluster.observe(), "")
    assert (spec.pipeline, spec.revision) == (None, "")
    cluster.settle()
    assert cluster.condition("Ready") == ("True", "AllStagesReady"), "it serves as before"
    cluster.delete(ChildKey("Deployment", f"demo-talker-{cluster.selected()}"))
    cluster.settle()
    assert cluster.condition("Ready") == ("False", "InvalidSpec")


@pytest.mark.parametrize(
    ("live", "wanted", "written", "says"),
    [
        ({"type": "ClusterIP"}, "a/b", "a/b", ""),
        ({"type": "LoadBalancer", "loadBalancerClass": "a/b"}, "a/b", "a/b", ""),
        ({"type": "LoadBalancer", "loadBalancerClass": "c/d"}, "a/b", "c/d", "keeps c/d"),
        ({"type": "LoadBalancer"}, "a/b", None, "keeps the default class"),
        ({"type": "LoadBalancer", "loadBalancerClass": "c/d"}, None, "c/d", ""),  # a webhook may have set it
        ({"type": "LoadBalancer"}, None, None, ""),
    ],
)
def test_a_load_balancer_keeps_its_class(live: Manifest, wanted: str | None, written: str | None, says: str) -> None:
    cluster = settled()
    service = cluster.children[ChildKey("Service", cluster.pipeline["metadata"]["name"])]
    service["spec"] |= live
    given = {"type": "LoadBalancer", **({"loadBalancerClass": wanted} if wanted else {})}
    cluster.pipeline["spec"]["entry"] = {"service": given}
    cluster.settle()
    service = cluster.children[ChildKey("Service", cluster.pipeline["metadata"]["name"])]
    assert (service["spec"]["type"], service["spec"].get("loadBalancerClass")) == ("LoadBalancer", written)
    assert cluster.condition("Degraded") == ("False", "AsExpected")
    conditions = {one["type"]: one["message"] for one in cluster.pipeline["status"]["conditions"]}
    assert ("loadBalancerClass: the load balancer" in conditions["Degraded"]) == bool(says)
    assert says in conditions["Degraded"]
