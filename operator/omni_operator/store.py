"""The operator's picture of the cluster: one copy of every watched object, as JSON bytes, indexed by pipeline.

Two sources write here: watches, in the order of the API server's versions, and the answers to our own writes, which
may overtake the watch or fall behind it. Versions decide: an event that is not newer than the copy changes nothing
(so the echo of our own write wakes nobody), and the answer to a write that the watch has already passed is dropped
(the object may be gone again by then).

Resource versions are compared as integers, within one collection only: so Kubernetes defines them since 1.35
(KEP-5504), and so etcd has always made them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from omni_operator.names import PIPELINE_LABEL
from omni_operator.objects import Manifest

PIPELINE_KIND = "OmniPipeline"


class PipelineKey(NamedTuple):
    """A pipeline: its namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObjectKey(NamedTuple):
    """A watched object."""

    kind: str
    namespace: str
    name: str


@dataclass(slots=True)
class _Entry:
    pipeline: PipelineKey | None
    version: int
    body: bytes


@dataclass(slots=True)
class _Progress:
    """How far the watch of one collection is."""

    version: int = 0
    touched: set[ObjectKey] | None = None
    """What was put or removed since a list began that is not complete yet."""


def version_of(manifest: Manifest) -> int:
    """Resource version of an object as a number; 0 if it is none."""
    return parse_version(manifest.get("metadata", {}).get("resourceVersion", ""))


def parse_version(text: str) -> int:
    """A resource version as a number; 0 if it is none."""
    return int(text) if text.isascii() and text.isdigit() else 0


def pipeline_of(manifest: Manifest) -> PipelineKey | None:
    """The pipeline that an object is or belongs to: the one that controls it, else the one its label names, or None."""
    metadata = manifest["metadata"]
    namespace = metadata.get("namespace", "")
    if manifest["kind"] == PIPELINE_KIND:
        return PipelineKey(namespace, metadata["name"])
    for owner in metadata.get("ownerReferences", ()):
        if owner.get("controller") and owner.get("kind") == PIPELINE_KIND:
            return PipelineKey(namespace, owner["name"])
    label = (metadata.get("labels") or {}).get(PIPELINE_LABEL)
    return PipelineKey(namespace, label) if label else None


def slim(manifest: Manifest) -> bytes:
    """An object as compact JSON, without managedFields (up to half of it, and of no use here)."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    return msgspec.json.encode(manifest | {"metadata": metadata})


class Store:
    """Watched objects. Collections are named by kind and by the namespace that their watch is for ("" is all)."""

    def __init__(self) -> None:
        self._entries: dict[ObjectKey, _Entry] = {}
        self._by_pipeline: dict[PipelineKey, set[ObjectKey]] = defaultdict(set)
        self._progress: dict[tuple[str, str], _Progress] = defaultdict(_Progress)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey) -> Manifest | None:
        """A fresh copy of an object, None if it is not known."""
        entry = self._entries.get(key)
        return msgspec.json.decode(entry.body) if entry else None

    def of_pipeline(self, pipeline: PipelineKey) -> Iterator[Manifest]:
        """Fresh copies of all objects that belong to a pipeline, in no order."""
        for key in tuple(self._by_pipeline.get(pipeline, ())):
            yield msgspec.json.decode(self._entries[key].body)

    def has(self, key: ObjectKey) -> bool:
        """Whether an object is known."""
        return key in self._entries

    def keys(self, kind: str) -> list[ObjectKey]:
        """All objects of a kind, in the order in which they came."""
        return [key for key in self._entries if key.kind == kind]

    def put_seen(self, manifest: Manifest, scope: str = "") -> set[PipelineKey]:
        """An object from a watch. Returns the pipelines that it concerns: empty if nothing new was said."""
        key, version = _key_of(manifest), version_of(manifest)
        self._advance(key.kind, scope, version)
        entry = self._entries.get(key)
        if entry is not None and version <= entry.version:
            return set()
        return self._put(key, manifest, version, scope)

    def put_written(self, manifest: Manifest, scope: str = "") -> bool:
        """An object from the answer to a write or a read of ours. Returns whether it was news."""
        key, version = _key_of(manifest), version_of(manifest)
        progress = self._progress[key.kind, scope]
        entry = self._entries.get(key)
        if version <= progress.version or (entry is not None and version <= entry.version):
            return False
        self._put(key, manifest, version, scope)
        return True

    def remove_seen(self, manifest: Manifest, scope: str = "") -> set[PipelineKey]:
        """An object that a watch reports as deleted (or as no longer selected). Returns the pipelines concerned."""
        key, version = _key_of(manifest), version_of(manifest)
        self._advance(key.kind, scope, version)
        entry = self._entries.get(key)
        if entry is None or version < entry.version:
            return set()
        return self._remove(key, scope)

    def remove_deleted(self, key: ObjectKey, scope: str = "") -> None:
        """Forget an object that is known to be gone: by the answer to a call of ours."""
        self._remove(key, scope)

    def begin_list(self, kind: str, scope: str = "") -> Listing:
        """A list of a collection is about to be asked for: give its items and its end to the Listing."""
        self._progress[kind, scope].touched = set()
        return Listing(self, kind, scope)

    def advance(self, kind: str, scope: str, version: int) -> None:
        """A bookmark: the watch of a collection has told everything up to version."""
        self._advance(kind, scope, version)

    def _advance(self, kind: str, scope: str, version: int) -> None:
        progress = self._progress[kind, scope]
        progress.version = max(progress.version, version)

    def _put(self, key: ObjectKey, manifest: Manifest, version: int, scope: str) -> set[PipelineKey]:
        concerned = self._remove(key, scope)
        pipeline = pipeline_of(manifest)
        self._entries[key] = _Entry(pipeline, version, slim(manifest))
        if pipeline is not None:
            self._by_pipeline[pipeline].add(key)
            concerned.add(pipeline)
        return concerned

    def _remove(self, key: ObjectKey, scope: str) -> set[PipelineKey]:
        touched = self._progress[key.kind, scope].touched
        if touched is not None:
            touched.add(key)
        entry = self._entries.pop(key, None)
        if entry is None or entry.pipeline is None:
            return set()
        keys = self._by_pipeline[entry.pipeline]
        keys.discard(key)
        if not keys:
            del self._by_pipeline[entry.pipeline]
        return {entry.pipeline}


class Listing:
    """Makes a collection equal to a list, page by page: deletions that no watch reported are found at its end.

    Copies that the list lacks go. What was put or removed since the list began and is newer than it stays so.
    Versions may have gone back (a restored etcd): the list wins.
    """

    def __init__(self, store: Store, kind: str, scope: str) -> None:
        self._store = store
        self._kind = kind
        self._scope = scope
        self._present: set[ObjectKey] = set()

    def put(self, manifest: Manifest, list_version: int) -> set[PipelineKey]:
        """An item of a list that is complete at list_version. Returns the pipelines that it concerns."""
        key, version = _key_of(manifest), version_of(manifest)
        self._present.add(key)
        entry = self._store._entries.get(key)
        if self._is_newer(key, list_version) or (entry is not None and entry.version == version):
            return set()
        return self._store._put(key, manifest, version, self._scope)

    def end(self, list_version: int) -> set[PipelineKey]:
        """The list is complete. Returns the pipelines that have lost an object."""
        concerned: set[PipelineKey] = set()
        for key in list(self._store._entries):
            in_collection = key.kind == self._kind and self._scope in ("", key.namespace)
            if in_collection and key not in self._present and not self._is_newer(key, list_version):
                concerned |= self._store._remove(key, self._scope)
        progress = self._store._progress[self._kind, self._scope]
        progress.version = list_version
        progress.touched = None
        return concerned

    def _is_newer(self, key: ObjectKey, list_version: int) -> bool:
        """Whether something newer than the list said how the object is, or that it is gone."""
        touched = self._store._progress[self._kind, self._scope].touched
        entry = self._store._entries.get(key)
        return touched is not None and key in touched and (entry is None or entry.version > list_version)


def _key_of(manifest: Manifest) -> ObjectKey:
    metadata = manifest["metadata"]
    return ObjectKey(manifest["kind"], metadata.get("namespace", ""), metadata["name"])
