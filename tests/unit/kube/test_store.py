"""The store chooses by resource version among what watches, lists and the responses to our own writes report."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from omni_kube.api.wire import Root, Seen, read_version
from omni_kube.objects import Manifest, NamespacedName, ObjectKey, parse_version, version_of
from omni_kube.store import UNREAD_BYTES, Store
from omni_operator.kinds import KIND_BY_NAME
from omni_proto.pod_contract import PIPELINE_LABEL

ROOT = Root("OmniPipeline", PIPELINE_LABEL)
P = NamespacedName("ns", "p")
Q = NamespacedName("ns", "q")
OWNED = [{"kind": "OmniPipeline", "name": "p", "controller": True, "uid": "u"}]
KEY = ObjectKey("Service", "ns", "s")


def service(version: int, name: str = "s", pipeline: str = "p", **metadata: Any) -> dict[str, Any]:
    labels = {PIPELINE_LABEL: pipeline} if pipeline else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version), "labels": labels} | metadata,
        "spec": {"at": version},
    }


def at(store: Store, key: ObjectKey = KEY) -> int | None:
    found = store.get(key)
    return None if found is None else version_of(found)


def test_of_an_object_what_is_asked_for_is_kept_and_given_as_a_copy() -> None:
    """The store keeps the part of an object that the given function `keep` returns, and gives out copies."""
    store = Store(ROOT, lambda manifest: {**manifest, "metadata": {"name": manifest["metadata"]["name"]}})
    store.put_seen(Seen.of(service(1, managedFields=[{"manager": "x"}], ownerReferences=OWNED)))
    found = store.get(KEY)
    assert found is not None
    assert "managedFields" not in found["metadata"]
    found["spec"]["at"] = "changed"
    assert store.get(KEY) != found
    assert (len(store), store.has(KEY), store.keys("Service"), store.keys("Pod")) == (1, True, [KEY], [])


def test_what_was_read_undecoded_is_what_decoding_gives_but_for_who_wrote_it() -> None:
    """An object read as raw JSON equals the decoded manifest, but without managedFields."""
    owners = [{"kind": "OmniPipeline", "name": "q", "controller": True, "uid": "u"}]
    manifest = service(7, ownerReferences=owners, annotations={"a": "é"}, generation=3)
    sent = service(7, ownerReferences=owners, annotations={"a": "é"}, generation=3, managedFields=[{"manager": "x"}])
    raw = msgspec.Raw(msgspec.json.encode(sent))
    read, made = Seen.read(raw, KIND_BY_NAME["Service"]), Seen.of(manifest)
    assert (read.key, read.version, ROOT.find(read)) == (made.key, made.version, ROOT.find(made)) == (KEY, 7, Q)
    assert read.decode() == made.decode() == manifest
    # Items of lists have no apiVersion and kind.
    nameless = msgspec.Raw(msgspec.json.encode({k: v for k, v in manifest.items() if k not in ("apiVersion", "kind")}))
    assert Seen.read(nameless, KIND_BY_NAME["Service"]).decode() == manifest
    assert read_version(raw) == "7"


def sent(version: int, name: str = "s", size: int = 0, decoded: Counter[str] | None = None) -> Seen:
    """Returns an object as a watch reads it. `decoded` counts by name how often an object is decoded."""
    raw = msgspec.Raw(msgspec.json.encode(service(version, name) | {"data": "x" * size}))
    seen = Seen.read(raw, KIND_BY_NAME["Service"])

    def decode() -> Manifest:
        if decoded is not None:
            decoded[name] += 1
        return seen.decode()

    return seen._replace(decode=decode)


def test_what_a_watch_brings_is_decoded_when_it_is_read_and_once() -> None:
    """An object from a watch is decoded when it is first read from the store, and only once."""
    store, decoded = Store(ROOT, lambda manifest: {"metadata": manifest["metadata"]}), Counter[str]()
    for version in range(5, 9):
        assert store.put_seen(sent(version, decoded=decoded)) == {P}
    store.put_seen(sent(9, "gone", decoded=decoded))
    store.remove_seen(sent(10, "gone", decoded=decoded))
    assert not decoded
    for _ in range(2):
        assert at(store) == 8
        assert [version_of(found) for found in store.of_root(P)] == [8]
    store.shorten(KEY, 8, lambda manifest: manifest | {"short": True})
    assert store.get(KEY) == {"metadata": service(8)["metadata"], "short": True}
    assert decoded == {"s": 1}


def test_an_object_may_be_shortened_before_it_was_read() -> None:
    store = Store(ROOT)
    store.put_seen(sent(5))
    store.shorten(KEY, 5, lambda manifest: {"at": manifest["spec"]["at"]})
    assert store.get(KEY) == {"at": 5}


def test_what_nobody_reads_is_decoded_in_the_end_so_that_little_is_kept() -> None:
    """When the undecoded objects exceed UNREAD_BYTES, the oldest are decoded, and only the part to store is kept."""
    store, decoded = Store(ROOT, lambda manifest: {"metadata": manifest["metadata"]}), Counter[str]()
    size = UNREAD_BYTES // 10
    for number in range(30):
        store.put_seen(sent(number + 1, f"s{number}", size, decoded))
        assert store._unread_bytes <= UNREAD_BYTES
        assert store._unread_bytes == sum(store._unread.values())
    assert set(decoded) == {f"s{number}" for number in range(21)}, "the oldest objects were not decoded first"
    store.put_seen(sent(40, "alone", UNREAD_BYTES, decoded))
    assert len(decoded) == 31, "an object of UNREAD_BYTES makes the store decode all objects"
    assert (store._unread_bytes, store._unread) == (0, {})


def test_what_is_put_again_or_removed_waits_no_more() -> None:
    """A replaced or removed object no longer counts towards the undecoded bytes. List items are decoded immediately."""
    store = Store(ROOT)
    for version in (1, 2):
        store.put_seen(sent(version, size=1000))
    assert store._unread_bytes == sent(2, size=1000).size
    store.put_seen(sent(3, "t", 50))
    store.remove_seen(sent(4))
    assert store._unread_bytes == sent(3, "t", 50).size
    listing = store.begin_list("Service")
    listing.put(sent(9, "u", 1000), 9)
    listing.end(9)
    assert (store._unread_bytes, at(store, ObjectKey("Service", "ns", "u"))) == (0, 9), "list items are decoded at once"


def test_changes_name_their_pipeline_and_the_echo_of_an_own_write_names_none() -> None:
    """A watch event names the pipeline to reconcile. An event that only repeats our own write names none."""
    store = Store(ROOT)
    assert store.put_seen(Seen.of(service(5))) == {P}
    assert store.put_written(service(7))
    assert store.put_seen(Seen.of(service(7))) == set()
    assert store.put_seen(Seen.of(service(6))) == set(), "the watch is behind our write"
    assert at(store) == 7
    assert store.put_seen(Seen.of(service(8))) == {P}


def test_the_answer_to_a_write_that_the_watch_has_passed_is_dropped() -> None:
    """The response to a write is dropped if the watch has already reported that version or a later one."""
    store = Store(ROOT)
    store.put_seen(Seen.of(service(10)))
    assert store.remove_seen(Seen.of(service(11))) == {P}
    assert not store.put_written(service(10)), "the object was deleted before the response to its creation was read"
    assert at(store) is None
    store.advance("Service", "", 20)
    assert not store.put_written(service(19))
    assert store.put_written(service(21))


def test_collections_of_other_kinds_and_namespaces_have_versions_of_their_own() -> None:
    """The progress of a watch counts only for its own kind and namespace."""
    store = Store(ROOT)
    store.advance("Service", "other", 100)
    store.advance("Pod", "ns", 100)
    assert store.put_written(service(5), "ns")
    assert not store.put_written(service(4), "ns")


def test_a_change_of_the_label_concerns_both_pipelines() -> None:
    store = Store(ROOT)
    store.put_seen(Seen.of(service(1)))
    assert store.put_seen(Seen.of(service(2, pipeline="q"))) == {P, Q}
    assert list(store.of_root(P)) == []
    assert [version_of(found) for found in store.of_root(Q)] == [2]
    assert store.put_seen(Seen.of(service(3, pipeline=""))) == {Q}
    assert at(store) == 3


def test_a_deletion_that_is_older_than_the_copy_is_none() -> None:
    """A DELETED event older than the stored copy belongs to an earlier object of the same name, and changes nothing."""
    store = Store(ROOT)
    store.put_written(service(9))
    assert store.remove_seen(Seen.of(service(5))) == set(), "the event is about an earlier object of that name"
    assert at(store) == 9
    store.remove_deleted(KEY)
    assert at(store) is None
    assert store.remove_seen(Seen.of(service(10))) == set()


def test_a_list_replaces_the_collection_and_finds_deletions() -> None:
    store = Store(ROOT)
    for name in ("kept", "changed", "gone"):
        store.put_seen(Seen.of(service(1, name, pipeline=name)), "ns")
    store.put_seen(Seen.of(service(1, "elsewhere") | {"kind": "Pod"}), "ns")
    listing = store.begin_list("Service", "ns")
    assert listing.put(Seen.of(service(1, "kept", pipeline="kept")), 50) == set()
    assert listing.put(Seen.of(service(40, "changed", pipeline="changed")), 50) == {NamespacedName("ns", "changed")}
    assert listing.put(Seen.of(service(45, "new", pipeline="new")), 50) == {NamespacedName("ns", "new")}
    assert listing.end(50) == {NamespacedName("ns", "gone")}
    assert sorted(key.name for key in store.keys("Service")) == ["changed", "kept", "new"]
    assert len(store.keys("Pod")) == 1


def test_a_list_of_one_namespace_leaves_others_alone() -> None:
    store = Store(ROOT)
    other = service(1, namespace="other")
    store.put_seen(Seen.of(other), "other")
    store.begin_list("Service", "ns").end(50)
    assert len(store) == 1
    store.begin_list("Service", "").end(50)
    assert len(store) == 0


def test_what_is_written_while_a_list_is_on_its_way_stays() -> None:
    """A list that began before a write does not remove the written object."""
    store = Store(ROOT)
    listing = store.begin_list("Service")
    store.put_written(service(60))
    assert listing.end(50) == set()
    assert at(store) == 60
    assert store.begin_list("Service").end(70) == {P}, "the next list lacks the object, so it was deleted"


def test_what_is_removed_while_a_list_is_on_its_way_does_not_come_back() -> None:
    store = Store(ROOT)
    store.put_seen(Seen.of(service(10)))
    listing = store.begin_list("Service")
    store.remove_seen(Seen.of(service(60)))
    assert listing.put(Seen.of(service(10)), 50) == set()
    listing.end(50)
    assert at(store) is None


def test_a_new_crd_changes_a_root_without_a_new_version() -> None:
    """The API server fills in the defaults of a custom resource whenever it is read."""
    root = {"apiVersion": "v1", "kind": "OmniPipeline", "metadata": {"namespace": "ns", "name": "p"}, "spec": {}}
    root["metadata"]["resourceVersion"] = "5"  # type: ignore[index]
    store = Store(ROOT)
    store.put_seen(Seen.of(root))
    for spec, concerned in (({}, set()), ({"new": "default"}, {P}), ({"new": "default"}, set()), ({}, {P})):
        listing = store.begin_list("OmniPipeline")
        assert listing.put(Seen.of({**root, "spec": spec}), 9) == concerned
        listing.end(9)
        found = store.get(ObjectKey("OmniPipeline", "ns", "p"))
        assert found is not None
        assert found["spec"] == spec


def test_versions_that_went_back_are_believed_to_a_list() -> None:
    """If versions have gone back, as after etcd was restored, the list replaces the stored objects."""
    store = Store(ROOT)
    store.put_seen(Seen.of(service(900)))
    store.put_seen(Seen.of(service(901, "lost")))
    listing = store.begin_list("Service")
    assert listing.put(Seen.of(service(30)), 40) == {P}
    assert listing.end(40) == {P}
    assert at(store) == 30
    assert store.put_seen(Seen.of(service(41))) == {P}


@pytest.mark.parametrize(
    ("metadata", "pipeline"),
    [
        ({}, None),
        ({"labels": None}, None),
        ({"labels": {PIPELINE_LABEL: "p"}}, P),
        ({"ownerReferences": [{"kind": "OmniPipeline", "name": "q", "controller": True}]}, Q),
        ({"labels": {PIPELINE_LABEL: "p"}, "ownerReferences": [{"kind": "OmniPipeline", "name": "q"}]}, P),
        (
            {
                "labels": {PIPELINE_LABEL: "p"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "q", "controller": True}],
            },
            P,
        ),
    ],
    ids=["nothing", "null labels", "label", "controller", "owner that does not control", "controlled by another kind"],
)
def test_whose_an_object_is(metadata: dict[str, Any], pipeline: NamespacedName | None) -> None:
    """An object belongs to the pipeline that controls it, otherwise to the pipeline in its label."""
    assert ROOT.find(Seen.of({"kind": "Service", "metadata": {"namespace": "ns", "name": "s"} | metadata})) == pipeline


def test_a_pipeline_is_its_own() -> None:
    assert ROOT.find(Seen.of({"kind": "OmniPipeline", "metadata": {"namespace": "ns", "name": "p"}})) == P
    assert str(P) == "ns/p"


@pytest.mark.parametrize(("text", "version"), [("12", 12), ("", 0), ("a1", 0), ("-1", 0), ("٣", 0)], ids=repr)
def test_versions_that_are_no_numbers_count_as_none(text: str, version: int) -> None:
    assert parse_version(text) == version
