"""Caches the watched objects, grouped by the root that each belongs to (in the operator, the OmniPipeline).

The store keeps only the fields that are used of each object, as JSON bytes. In addition to lists, two sources write
here. Watches report objects in the order of the API server's versions. Responses to our own writes may arrive before or
after the corresponding events. The newer version wins. An event that is not newer than the stored copy changes nothing,
so the event that follows our own write causes no reconcile. The response to a write that the watch has already passed
is dropped, because the object may have been deleted since.

Objects from a watch are kept undecoded until they are read, because most of them change again before that.

Resource versions are compared as integers, and only within one collection: Kubernetes defines this order since 1.35
(KEP-5504), and etcd has always produced it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from omni_kube.api.wire import Root, Seen
from omni_kube.objects import Manifest, NamespacedName, ObjectKey

UNREAD_BYTES: Final = 4 * 2**20
"""Largest total size of the undecoded objects. Beyond it the oldest are decoded, and only the part to store is kept."""


@dataclass(slots=True)
class _Entry:
    root: NamespacedName | None
    version: int
    body: bytes = b""
    unread: Seen | None = None
    """The object, if body is not made yet."""


@dataclass(slots=True)
class _Progress:
    """Progress of the watch of one collection."""

    version: int = 0
    touched: set[ObjectKey] | None = None
    """Objects that were put or removed since an unfinished list began; None while no list is in progress."""


class Store:
    """Watched objects. A collection is identified by its kind and the namespace of its watch ("" is all)."""

    def __init__(self, root: Root, keep: Callable[[Manifest], Manifest] = lambda manifest: manifest) -> None:
        """root is the kind that other objects belong to. keep returns the part of a received object to store."""
        self._root = root
        self._keep = keep
        self._entries: dict[ObjectKey, _Entry] = {}
        self._by_root: dict[NamespacedName, set[ObjectKey]] = defaultdict(set)
        self._created: dict[str, dict[str, str]] = {}  # of roots: namespace -> name -> when it was created
        self._progress: dict[tuple[str, str], _Progress] = defaultdict(_Progress)
        self._unread: dict[ObjectKey, int] = {}  # sizes, the oldest first
        self._unread_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: ObjectKey) -> Manifest | None:
        """Returns a new copy of the stored part of an object, None if the object is not stored."""
        return msgspec.json.decode(self._read(key)) if key in self._entries else None

    def of_root(self, root: NamespacedName) -> Iterator[Manifest]:
        """Yields new copies of all objects that belong to a root, including the root, in no particular order."""
        for key in tuple(self._by_root.get(root, ())):
            yield msgspec.json.decode(self._read(key))

    def shorten(self, key: ObjectKey, version: int, keep: Callable[[Manifest], Manifest]) -> None:
        """Replace the stored copy of an object by keep(copy), if the copy still has that version."""
        entry = self._entries.get(key)
        if entry is not None and entry.version == version:
            entry.body = msgspec.json.encode(keep(msgspec.json.decode(self._read(key))))

    def has(self, key: ObjectKey) -> bool:
        """Returns whether an object is stored."""
        return key in self._entries

    def version(self, key: ObjectKey) -> int | None:
        """Returns the resource version of a stored object, None if it is not stored."""
        entry = self._entries.get(key)
        return None if entry is None else entry.version

    def rank(self, root: NamespacedName, limit: int) -> int:
        """Returns how many roots in the same namespace are older; 0 if the namespace has at most limit roots."""
        created = self._created.get(root.namespace, {})
        if len(created) <= limit or root.name not in created:
            return 0
        own = (created[root.name], root.name)
        return sum((time, name) < own for name, time in created.items())

    def keys(self, kind: str) -> list[ObjectKey]:
        """Returns the keys of all objects of a kind, in the order in which they were stored."""
        return [key for key in self._entries if key.kind == kind]

    def put_seen(self, seen: Seen, scope: str = "") -> set[NamespacedName]:
        """Store an object from a watch. Returns the roots that it affects: none if the object is not newer."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is not None and seen.version <= entry.version:
            return set()
        concerned = self._put(seen, scope, read=False)
        while self._unread_bytes > UNREAD_BYTES:
            self._read(next(iter(self._unread)))
        return concerned

    def put_written(self, manifest: Manifest, scope: str = "") -> bool:
        """Store an object from the response to our own write or read. Returns whether it was newer."""
        seen = Seen.of(manifest)
        progress = self._progress[seen.key.kind, scope]
        entry = self._entries.get(seen.key)
        if seen.version <= progress.version or (entry is not None and seen.version <= entry.version):
            return False
        self._put(seen, scope)
        return True

    def remove_seen(self, seen: Seen, scope: str = "") -> set[NamespacedName]:
        """Remove an object that a watch reports as deleted or no longer selected. Returns the affected roots."""
        self._advance(seen.key.kind, scope, seen.version)
        entry = self._entries.get(seen.key)
        if entry is None or seen.version < entry.version:
            return set()
        return self._remove(seen.key, scope)

    def remove_deleted(self, key: ObjectKey, scope: str = "") -> None:
        """Remove an object after the response to our own call showed that it no longer exists."""
        self._remove(key, scope)

    def begin_list(self, kind: str, scope: str = "") -> Listing:
        """Begin a list of a collection, before it is requested. Pass its items and its end to the returned Listing."""
        self._progress[kind, scope].touched = set()
        return Listing(self, kind, scope)

    def advance(self, kind: str, scope: str, version: int) -> None:
        """Note a bookmark: the watch of a collection has reported all changes up to version."""
        self._advance(kind, scope, version)

    def _advance(self, kind: str, scope: str, version: int) -> None:
        progress = self._progress[kind, scope]
        progress.version = max(progress.version, version)

    def _put(self, seen: Seen, scope: str, *, read: bool = True) -> set[NamespacedName]:
        concerned = self._remove(seen.key, scope)
        root = self._root.find(seen)
        self._entries[seen.key] = _Entry(root, seen.version, unread=seen)
        self._unread[seen.key] = seen.size
        self._unread_bytes += seen.size
        if read:
            self._read(seen.key)
        if seen.key.kind == self._root.kind:
            self._created.setdefault(seen.key.namespace, {})[seen.key.name] = seen.created
        if root is not None:
            self._by_root[root].add(seen.key)
            concerned.add(root)
        return concerned

    def _read(self, key: ObjectKey) -> bytes:
        """Returns the stored part of a stored object as JSON."""
        entry = self._entries[key]
        if entry.unread is not None:
            entry.body = msgspec.json.encode(self._keep(entry.unread.decode()))
            entry.unread = None
            self._unread_bytes -= self._unread.pop(key)
        return entry.body

    def _remove(self, key: ObjectKey, scope: str) -> set[NamespacedName]:
        touched = self._progress[key.kind, scope].touched
        if touched is not None:
            touched.add(key)
        entry = self._entries.pop(key, None)
        self._unread_bytes -= self._unread.pop(key, 0)
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
    """Makes a collection equal to a list, page by page, including deletions that no watch reported.

    At the end, stored objects that the list lacks are removed. A change that was stored since the list began is kept if
    it is newer than the list. If the list has older versions than the stored objects (after etcd was restored from a
    backup), the list wins.
    """

    def __init__(self, store: Store, kind: str, scope: str) -> None:
        self._store = store
        self._kind = kind
        self._scope = scope
        self._present: set[ObjectKey] = set()

    def put(self, seen: Seen, list_version: int) -> set[NamespacedName]:
        """Store an item of a list whose resource version is list_version. Returns the roots that it affects."""
        self._present.add(seen.key)
        entry = self._store._entries.get(seen.key)
        if self._is_newer(seen.key, list_version):
            return set()
        if entry is not None and entry.version == seen.version and not self._differs(seen):
            return set()
        return self._store._put(seen, self._scope)

    def _differs(self, seen: Seen) -> bool:
        """Returns whether a root has other content than the stored object with the same version.

        The API server fills in the defaults of a custom resource when it is read. So a new CustomResourceDefinition
        changes every object, without a new version and without an event.
        """
        store = self._store
        if self._kind != store._root.kind:
            return False
        return bool(msgspec.json.decode(store._read(seen.key)) != store._keep(seen.decode()))

    def end(self, list_version: int) -> set[NamespacedName]:
        """Complete the list. Returns the roots that have lost an object."""
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
        """Returns whether a change or a deletion of the object since the list began is newer than the list."""
        touched = self._store._progress[self._kind, self._scope].touched
        entry = self._store._entries.get(key)
        return touched is not None and key in touched and (entry is None or entry.version > list_version)
