"""A picture of the cluster: what is read of every watched object, as JSON bytes, by the root that it belongs to.

Two sources write here: watches, in the order of the API server's versions, and the answers to our own writes, which
may overtake the watch or fall behind it. Versions decide: an event that is not newer than the copy changes nothing
(so the echo of our own write wakes nobody), and the answer to a write that the watch has already passed is dropped
(the object may be gone again by then).

Resource versions are compared as integers, within one collection only: so Kubernetes defines them since 1.35
(KEP-5504), and so etcd has always made them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from omni_kube.objects import Manifest, NamespacedName, ObjectKey
from omni_kube.seen import Root, Seen


@dataclass(slots=True)
class _Entry:
    root: NamespacedName | None
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

    def __init__(self, root: Root, keep: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
        """root is the kind that others belong to; keep returns what is to be kept of an object that comes."""
        self._root = root
        self._keep = keep
        self._entries: dict[ObjectKey, _Entry] = {}
        self._by_root: dict[NamespacedName, set[ObjectKey]] = defaultdict(set)
        self._created: dict[str, dict[str, str]] = {}  # of roots: namespace -> name -> when it was created
        self._progress: dict[tuple[str, str], _Progress] = defaultdict(_Progress)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey) -> Manifest | None:
        """Returns a fresh copy of what is kept of an object, None if it is not known."""
        entry = self._entries.get(key)
        return msgspec.json.decode(entry.body) if entry else None

    def of_root(self, root: NamespacedName) -> Iterator[Manifest]:
        """Yields fresh copies of all objects that belong to a root, itself included, in no order."""
        for key in tuple(self._by_root.get(root, ())):
            yield msgspec.json.decode(self._entries[key].body)

    def shorten(self, key: ObjectKey, version: int, keep: Callable[[Manifest], Manifest]) -> None:
        """Keep less of an object from now on, if it is still at that version: what keep returns of the copy."""
        entry = self._entries.get(key)
        if entry is not None and entry.version == version:
            entry.body = msgspec.json.encode(keep(msgspec.json.decode(entry.body)))

    def has(self, key: ObjectKey) -> bool:
        """Returns whether an object is known."""
        return key in self._entries

    def rank(self, root: NamespacedName, limit: int) -> int:
        """Returns how many roots of a root's namespace are older; 0 while there are no more than limit in all."""
        created = self._created.get(root.namespace, {})
        if len(created) <= limit or root.name not in created:
            return 0
        own = (created[root.name], root.name)
        return sum((time, name) < own for name, time in created.items())

    def keys(self, kind: str) -> list[ObjectKey]:
        """Returns all objects of a kind, in the order in which they came."""
        return [key for key in self._entries if key.kind == kind]

    def put_seen(self, seen: Seen, scope: str = "") -> set[NamespacedName]:
        """Take in an object from a watch. Returns the roots that it concerns: none if nothing new was said."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is not None and seen.version <= entry.version:
            return set()
        return self._put(seen, scope)

    def put_written(self, manifest: Manifest, scope: str = "") -> bool:
        """Take in an object from the answer to one of our writes or reads. Returns whether it was new."""
        seen = Seen.of(manifest)
        progress = self._progress[seen.key.kind, scope]
        entry = self._entries.get(seen.key)
        if seen.version <= progress.version or (entry is not None and seen.version <= entry.version):
            return False
        self._put(seen, scope)
        return True

    def remove_seen(self, seen: Seen, scope: str = "") -> set[NamespacedName]:
        """Take out an object that a watch reports as deleted, or no longer selected. Returns the roots concerned."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is None or seen.version < entry.version:
            return set()
        return self._remove(seen.key, scope)

    def remove_deleted(self, key: ObjectKey, scope: str = "") -> None:
        """Forget an object that is known to be gone: by the answer to one of our calls."""
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

    def _put(self, seen: Seen, scope: str) -> set[NamespacedName]:
        concerned = self._remove(seen.key, scope)
        root = self._root.find(seen)
        self._entries[seen.key] = _Entry(root, seen.version, msgspec.json.encode(self._keep(seen.decode())))
        if seen.key.kind == self._root.kind:
            self._created.setdefault(seen.key.namespace, {})[seen.key.name] = seen.created
        if root is not None:
            self._by_root[root].add(seen.key)
            concerned.add(root)
        return concerned

    def _remove(self, key: ObjectKey, scope: str) -> set[NamespacedName]:
        touched = self._progress[key.kind, scope].touched
        if touched is not None:
            touched.add(key)
        entry = self._entries.pop(key, None)
        if key.kind == self._root.kind:
            self._created.get(key.namespace, {}).pop(key.name, None)
        if entry is None or entry.root is None:
            return set()
        keys = self._by_root[entry.root]
        keys.discard(key)
        if not keys:
            del self._by_root[entry.root]
        return {entry.root}


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

    def put(self, seen: Seen, list_version: int) -> set[NamespacedName]:
        """An item of a list that is complete at list_version. Returns the roots that it concerns."""
        self._present.add(seen.key)
        entry = self._store._entries.get(seen.key)
        if self._is_newer(seen.key, list_version) or (entry is not None and entry.version == seen.version):
            return set()
        return self._store._put(seen, self._scope)

    def end(self, list_version: int) -> set[NamespacedName]:
        """The list is complete. Returns the roots that have lost an object."""
        concerned: set[NamespacedName] = set()
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
