"""The operator's picture of the cluster: what decisions read of every watched object, as JSON bytes, by pipeline.

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

import msgspec

from omni_kube.objects import PIPELINE_KIND, Manifest
from omni_kube.seen import ObjectKey, PipelineKey, Seen
from omni_operator.state.slim import slim_child


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


class Store:
    """Watched objects. Collections are named by kind and by the namespace that their watch is for ("" is all)."""

    def __init__(self) -> None:
        self._entries: dict[ObjectKey, _Entry] = {}
        self._by_pipeline: dict[PipelineKey, set[ObjectKey]] = defaultdict(set)
        self._pipelines: dict[str, dict[str, str]] = {}  # namespace -> name -> when it was created
        self._progress: dict[tuple[str, str], _Progress] = defaultdict(_Progress)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey) -> Manifest | None:
        """A fresh copy of what is kept of an object, None if it is not known."""
        entry = self._entries.get(key)
        return msgspec.json.decode(entry.body) if entry else None

    def of_pipeline(self, pipeline: PipelineKey) -> Iterator[Manifest]:
        """Fresh copies of all objects that belong to a pipeline, in no order."""
        for key in tuple(self._by_pipeline.get(pipeline, ())):
            yield msgspec.json.decode(self._entries[key].body)

    def slim(self, key: ObjectKey, version: int) -> None:
        """Keep a child as a hash, if it is still at that version."""
        entry = self._entries.get(key)
        if entry is not None and entry.version == version:
            entry.body = msgspec.json.encode(slim_child(msgspec.json.decode(entry.body)))

    def has(self, key: ObjectKey) -> bool:
        """Whether an object is known."""
        return key in self._entries

    def rank(self, pipeline: PipelineKey, limit: int) -> int:
        """How many pipelines of the namespace are older than a pipeline; 0 while they are no more than limit in all."""
        created = self._pipelines.get(pipeline.namespace, {})
        if len(created) <= limit or pipeline.name not in created:
            return 0
        own = (created[pipeline.name], pipeline.name)
        return sum((time, name) < own for name, time in created.items())

    def keys(self, kind: str) -> list[ObjectKey]:
        """All objects of a kind, in the order in which they came."""
        return [key for key in self._entries if key.kind == kind]

    def put_seen(self, seen: Seen, scope: str = "") -> set[PipelineKey]:
        """An object from a watch. Returns the pipelines that it concerns: empty if nothing new was said."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is not None and seen.version <= entry.version:
            return set()
        return self._put(seen, scope)

    def put_written(self, manifest: Manifest, scope: str = "") -> bool:
        """An object from the answer to a write or a read of ours. Returns whether it was news."""
        seen = Seen.of(manifest)
        progress = self._progress[seen.key.kind, scope]
        entry = self._entries.get(seen.key)
        if seen.version <= progress.version or (entry is not None and seen.version <= entry.version):
            return False
        self._put(seen, scope)
        return True

    def remove_seen(self, seen: Seen, scope: str = "") -> set[PipelineKey]:
        """An object that a watch reports as deleted (or as no longer selected). Returns the pipelines concerned."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is None or seen.version < entry.version:
            return set()
        return self._remove(seen.key, scope)

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

    def _put(self, seen: Seen, scope: str) -> set[PipelineKey]:
        concerned = self._remove(seen.key, scope)
        self._entries[seen.key] = _Entry(seen.pipeline, seen.version, seen.encode())
        if seen.key.kind == PIPELINE_KIND:
            self._pipelines.setdefault(seen.key.namespace, {})[seen.key.name] = seen.created
        if seen.pipeline is not None:
            self._by_pipeline[seen.pipeline].add(seen.key)
            concerned.add(seen.pipeline)
        return concerned

    def _remove(self, key: ObjectKey, scope: str) -> set[PipelineKey]:
        touched = self._progress[key.kind, scope].touched
        if touched is not None:
            touched.add(key)
        entry = self._entries.pop(key, None)
        if key.kind == PIPELINE_KIND:
            self._pipelines.get(key.namespace, {}).pop(key.name, None)
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

    def put(self, seen: Seen, list_version: int) -> set[PipelineKey]:
        """An item of a list that is complete at list_version. Returns the pipelines that it concerns."""
        self._present.add(seen.key)
        entry = self._store._entries.get(seen.key)
        if self._is_newer(seen.key, list_version) or (entry is not None and entry.version == seen.version):
            return set()
        return self._store._put(seen, self._scope)

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
