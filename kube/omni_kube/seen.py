"""Objects as watches and lists bring them: their identity and whom they belong to, the rest decoded only if changed.

The start of a pipeline makes some sixty events, a third of them echoes of our own writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import msgspec

from omni_kube.objects import Manifest, NamespacedName, ObjectKey, ObjectKind, parse_version


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    """What of an object's metadata says who it is; the rest is passed over."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None
    labels: dict[str, str] | None = None
    ownerReferences: list[_Owner] | None = None


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_METADATA = msgspec.json.Decoder(_Metadata)


class Controller(NamedTuple):
    """The object that controls another one, in the same namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Seen:
    """An object that a watch, a list or an answer brought."""

    key: ObjectKey
    version: int
    controller: Controller | None
    labels: Mapping[str, str]
    created: str
    """When it was created, as the API server writes it; empty if it does not say."""
    decode: Callable[[], Manifest]
    """Returns the whole object, with apiVersion and kind."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Returns a decoded object. Raises msgspec.ValidationError for metadata that no API server sends."""
        metadata = msgspec.convert(manifest["metadata"], _Metadata)
        return cls._of(manifest["kind"], metadata, lambda: manifest)

    @classmethod
    def read(cls, raw: msgspec.Raw, kind: ObjectKind) -> Self:
        """Returns an object of a kind from JSON; items of lists do not name their kind. Raises msgspec.DecodeError."""
        members = _MEMBERS.decode(raw)
        metadata = _METADATA.decode(_metadata_of(members))
        return cls._of(kind.kind, metadata, partial(_decode_members, kind, members))

    @classmethod
    def _of(cls, kind: str, metadata: _Metadata, decode: Callable[[], Manifest]) -> Self:
        owner = next((owner for owner in metadata.ownerReferences or () if owner.controller), None)
        return cls(
            key=ObjectKey(kind, metadata.namespace, metadata.name),
            version=parse_version(metadata.resourceVersion),
            controller=None if owner is None else Controller(owner.kind, owner.name),
            labels=metadata.labels or {},
            created=metadata.creationTimestamp or "",
            decode=decode,
        )


@dataclass(frozen=True, slots=True)
class Root:
    """The kind of object that all other objects of a store belong to."""

    kind: str
    label: str
    """Label by which an object names the one that it belongs to, if none of that kind controls it."""

    def find(self, seen: Seen) -> NamespacedName | None:
        """Returns the root that an object is or belongs to, None if it belongs to none."""
        namespace = seen.key.namespace
        if seen.key.kind == self.kind:
            return NamespacedName(namespace, seen.key.name)
        if seen.controller is not None and seen.controller.kind == self.kind:
            return NamespacedName(namespace, seen.controller.name)
        name = seen.labels.get(self.label)
        return NamespacedName(namespace, name) if name else None


def read_version(raw: msgspec.Raw) -> str:
    """Returns the resource version of a bookmark's object. Raises msgspec.DecodeError."""
    return _METADATA.decode(_metadata_of(_MEMBERS.decode(raw))).resourceVersion


def _metadata_of(members: Mapping[str, msgspec.Raw]) -> msgspec.Raw:
    if "metadata" not in members:
        raise msgspec.ValidationError("an object without metadata")
    return members["metadata"]


def _decode_members(kind: ObjectKind, members: Mapping[str, msgspec.Raw]) -> Manifest:
    # Lists do not name the kind, and answers of metadata alone name another one.
    manifest = {name: msgspec.json.decode(member) for name, member in members.items()}
    return manifest | {"apiVersion": kind.api_version, "kind": kind.kind}
