"""The store keeps every field that decisions read. It keeps little else of pods and of verified children, and almost
nothing of objects that no pipeline controls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from omni_kube.api.wire import Seen
from omni_kube.objects import NamespacedName, ObjectKey, ObjectKind
from omni_operator.kinds import CHILD_KINDS, ENDPOINT_SLICES, KIND_BY_NAME, PODS, REPLICA_SETS, key_of
from omni_operator.rollout.decide import parse_live_pipeline
from omni_operator.rollout.plan import Verified, compute_plan
from omni_operator.state.observe import count_ready_endpoints, new_store
from omni_operator.state.observed import Observed
from omni_operator.state.slim import SLIM, slim_child, slim_seen
from omni_proto.pipeline import PipelineError, parse_pipeline
from omni_proto.pod_contract import PIPELINE_LABEL
from support.operator.operator_pipelines import build_all
from support.processes.pipelines import SAMPLES

MIB = 1 << 20
MAX_UNRELATED_BYTES = 1024
KINDS = (*CHILD_KINDS, PODS, REPLICA_SETS, ENDPOINT_SLICES)


def unrelated(kind: ObjectKind) -> dict[str, Any]:
    """Returns an object with a pipeline's label, without an owner, and with 1 MiB of text in each of several fields."""
    text = "x" * MIB
    metadata = {"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": "5", "annotations": {"a": text}}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata | {"labels": {PIPELINE_LABEL: "p", "other": text}},
        "data": {"k": text},
        "spec": {"x": text, "template": {"spec": {"containers": [{"name": "c", "args": [text]}]}}, "nodeName": text},
        "status": {"x": text},
    }


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not REPLICA_SETS], ids=lambda kind: str(kind.kind))
def test_almost_nothing_of_foreign_objects_is_kept(kind: ObjectKind) -> None:
    """The store keeps less than 1 KiB of an object that no pipeline controls. ReplicaSets are an exception."""
    manifest = unrelated(kind)
    raw = msgspec.Raw(msgspec.json.encode(manifest))
    for seen in (Seen.of(manifest), Seen.read(raw, kind)):
        kept = msgspec.json.encode(slim_seen(seen.decode()))
        assert len(kept) < MAX_UNRELATED_BYTES
        assert msgspec.json.decode(kept)["metadata"]["name"] == "s"


OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
PIPELINE = OWNER | {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline"}
TOKEN = {"name": "hub-token", "secret": {"secretName": "s", "items": [{"key": "k"}]}}
VARIABLE = {"name": "V", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def foreign(kind: str, *owners: dict[str, Any], **fields: Any) -> dict[str, Any]:
    metadata = {"name": "s", "namespace": "ns", "uid": "u", "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata | {"annotations": {"a": "x" * 200_000}}} | fields


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(foreign("ConfigMap", *[PIPELINE | {"controller": False}] * 10_000), id="10,000 owners"),
        pytest.param(foreign("ConfigMap", OWNER | {"name": "x" * MIB, "uid": "x" * MIB}), id="an owner's long name"),
        pytest.param(
            foreign("Pod", OWNER, spec={"containers": [{"name": "c", "env": [VARIABLE] * 12_000}]}),
            id="a pod of 12,000 variables",
        ),
        pytest.param(
            foreign("Pod", OWNER, spec={"containers": [{"name": "c", "image": "i"}] * 10_000}),
            id="a pod of 10,000 containers",
        ),
        pytest.param(
            foreign("ReplicaSet", OWNER, spec={"selector": {"matchLabels": {f"k{n}": "x" * 63 for n in range(9000)}}}),
            id="a ReplicaSet with a long selector",
        ),
        pytest.param(
            foreign("EndpointSlice", endpoints=[{"addresses": ["10.0.0.1"] * 100}] * 1000), id="100,000 addresses"
        ),
        pytest.param(foreign("NetworkPolicy", PIPELINE, spec={}), id="a NetworkPolicy that claims to be a child"),
    ],
)
def test_of_objects_that_are_too_large_little_is_kept(manifest: dict[str, Any]) -> None:
    kept = slim_seen(manifest)
    assert len(msgspec.json.encode(kept)) < 2 * MAX_UNRELATED_BYTES
    assert kept["metadata"]["name"] == "s"


def test_the_controller_of_a_reduced_object_is_kept() -> None:
    kept = slim_seen(foreign("ConfigMap", OWNER | {"controller": False, "uid": "other"}, OWNER))
    assert kept["metadata"]["ownerReferences"] == [OWNER]


def test_foreign_objects_do_not_fill_the_store() -> None:
    store = new_store()
    for number in range(300):
        manifest = unrelated(KIND_BY_NAME["ConfigMap"])
        store.put_seen(Seen.of(manifest | {"metadata": manifest["metadata"] | {"name": f"s{number}"}}))
    assert sum(len(entry.body) for entry in store._entries.values()) < 300 * MAX_UNRELATED_BYTES


def live(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns a child as the API server holds it after it was applied."""
    uid = "-".join(key_of(manifest))
    return manifest | {"metadata": manifest["metadata"] | {"uid": uid, "resourceVersion": "7"}}


@pytest.fixture(scope="module")
def observed() -> Observed:
    """Returns a pipeline whose children all match their desired state."""
    text = (SAMPLES / "tiny-omni.yaml").read_text()
    children = [live(child) for child in build_all(parse_pipeline(text))]
    owner = children[0]["metadata"]["ownerReferences"][0]
    metadata = {
        "name": owner["name"],
        "namespace": children[0]["metadata"]["namespace"],
        "uid": owner["uid"],
        "generation": 1,
    }
    return Observed(pipeline={"metadata": metadata}, children={key_of(child): child for child in children})


def test_a_child_that_was_verified_is_a_hash_and_needs_no_reading(observed: Observed) -> None:
    desired = list(observed.children.values())
    verified = Verified()
    assert compute_plan(desired, observed, verified=verified).is_empty
    slim = replace(observed, children={key: slim_child(child) for key, child in observed.children.items()})
    plan = compute_plan(desired, slim, verified=verified)
    assert (plan.is_empty, plan.unread) == (True, ())
    whole, kept = (sum(len(msgspec.json.encode(child)) for child in one.children.values()) for one in (observed, slim))
    assert kept < whole / 2


def test_a_child_that_was_not_verified_is_read_first(observed: Observed) -> None:
    """A child that was not verified and whose data the store lacks is read before it is compared."""
    desired = list(observed.children.values())
    slim = {key: slim_seen(child) if key.kind == "ConfigMap" else child for key, child in observed.children.items()}
    maps = {key for key in slim if key.kind == "ConfigMap"}
    plan = compute_plan(desired, replace(observed, children=slim), verified=Verified())
    assert (plan.is_empty, set(plan.unread)) == (True, maps)
    edited = {key: child | {"data": {}} for key, child in observed.children.items() if key in maps}
    plan = compute_plan(desired, replace(observed, children={**slim, **edited}), verified=Verified())
    assert ({key_of(child) for child in plan.apply}, plan.unread) == (maps, ())


def test_the_store_keeps_a_hash_only_of_the_version_that_was_verified(observed: Observed) -> None:
    store = new_store()
    key, child = next((key, child) for key, child in observed.children.items() if key.kind == "Deployment")
    store.put_seen(Seen.of(child))
    name = ObjectKey(key.kind, child["metadata"]["namespace"], key.name)
    store.shorten(name, 6, slim_child)
    assert SLIM not in store.get(name)  # type: ignore[operator]
    store.shorten(name, 7, slim_child)
    found = store.get(name)
    assert found is not None
    assert (found[SLIM], found["spec"]["replicas"]) == (True, child["spec"]["replicas"])
    assert "containers" in found["spec"]["template"]["spec"], "containers are kept, because they name ConfigMaps"


def pod(**fields: Any) -> dict[str, Any]:
    owners = [{"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
    metadata = {"name": "p-0", "namespace": "ns", "uid": "p", "resourceVersion": "5", "ownerReferences": owners}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **fields}


def test_of_a_pod_the_fields_that_show_causes_are_kept() -> None:
    """The store keeps the fields of a pod from which causes are found."""
    manifest = pod(
        spec={
            "nodeName": "n",
            "containers": [{"name": "stage", "image": "i", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}}}],
            "volumes": [{"name": "c", "configMap": {"name": "m"}}, {"name": "e", "emptyDir": {}}, TOKEN],
        },
        status={
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": [
                {"name": "stage", "image": "i", "ready": False, "state": {"terminated": {"reason": "OOMKilled"}}}
            ],
        },
    )
    slim = slim_seen(manifest)
    assert slim["spec"] == {
        "nodeName": "n",
        "containers": [{"name": "stage", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}],
        "volumes": [{"configMap": {"name": "m"}}, TOKEN],
    }
    assert slim["status"]["containerStatuses"] == [
        {"name": "stage", "ready": False, "state": {"terminated": {"reason": "OOMKilled"}}}
    ]


def test_of_endpoint_slices_the_ready_endpoints_are_kept() -> None:
    """The store keeps what count_ready_endpoints reads of an EndpointSlice."""
    manifest = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "s", "namespace": "ns", "labels": {"kubernetes.io/service-name": "svc", "x": "y"}},
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": True}, "nodeName": "n", "targetRef": {"uid": "a"}},
            {"addresses": ["10.0.0.2"], "conditions": {}},
        ],
        "ports": [{"port": 1}],
    }
    slim = slim_seen(manifest)
    assert "ports" not in slim
    assert count_ready_endpoints([slim]) == count_ready_endpoints([manifest]) == {"svc": 2}


def test_a_spec_that_is_too_large_is_a_number_and_refused() -> None:
    """The store keeps only the size of an oversized spec.

    A spec of 991 KB once passed the type checks and made children of 2.1 MB.
    """
    spec = yaml.safe_load((SAMPLES / "tiny-omni.yaml").read_text())["spec"]
    spec["defaults"] = {"podAnnotations": {f"example.com/{number}": "a" * 1000 for number in range(100)}}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "5", "annotations": {"a": "x" * MIB}}
    manifest = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "metadata": metadata, "spec": spec}
    kept = msgspec.json.encode(slim_seen(manifest))
    assert len(kept) < MAX_UNRELATED_BYTES
    with pytest.raises(PipelineError, match=r"spec: is 10\d{4} bytes as JSON, over the limit of 65536"):
        parse_live_pipeline(msgspec.json.decode(kept))
    with pytest.raises(PipelineError, match="over the limit of 65536"):
        parse_live_pipeline(manifest)


def test_the_oldest_pipelines_of_a_namespace_come_first() -> None:
    store = new_store()
    for name, namespace, minute in (("c", "ns", 1), ("b", "ns", 2), ("a", "ns", 2), ("d", "ns", 3), ("x", "other", 0)):
        metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "5"}
        metadata["creationTimestamp"] = f"2026-11-22T12:0{minute}:00Z"
        store.put_seen(Seen.of({"apiVersion": "v", "kind": "OmniPipeline", "metadata": metadata, "spec": {}}))
    ranks = {name: store.rank(NamespacedName("ns", name), 2) for name in "abcd"}
    assert ranks == {"c": 0, "a": 1, "b": 2, "d": 3}
    assert store.rank(NamespacedName("other", "x"), 2) == 0
    assert store.rank(NamespacedName("ns", "d"), 4) == 0, "none is over the limit"
    store.remove_deleted(ObjectKey("OmniPipeline", "ns", "c"))
    assert store.rank(NamespacedName("ns", "b"), 2) == 1, "a deleted pipeline makes room for another"
