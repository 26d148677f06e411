"""Objects from watches and lists: identity and owner are decoded immediately, the rest only if it is needed.

The start of a pipeline causes about sixty events. A third of them report the operator's own writes. Malformed input
raises ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import msgspec

from omni_kube.errors import ApiError, api_error
from omni_kube.objects import Manifest, NamespacedName, ObjectKey, ObjectKind, parse_version


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct):
    """The fields of an object's metadata that identify it; other fields are not decoded."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""
    creationTimestamp: str | None = None
    labels: dict[str, str] | None = None
    ownerReferences: list[_Owner] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT = msgspec.json.Decoder(_Object)


class ControllerRef(NamedTuple):
    """The object that controls another one, in the same namespace."""

    kind: str
    name: str


class Seen(NamedTuple):
    """An object from a watch, a list or a response."""

    key: ObjectKey
    version: int
    controller: ControllerRef | None
    labels: Mapping[str, str]
    created: str
    """Creation timestamp in the API server's format; empty if absent."""
    decode: Callable[[], Manifest]
    """Returns the object with apiVersion and kind. The object of a Seen that `read` returned has no managedFields."""
    size: int = 0
    """Bytes of JSON that are kept for decode; 0 for a decoded object."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Returns a decoded object as Seen. Raises msgspec.ValidationError for malformed metadata."""
        metadata = msgspec.convert(manifest["metadata"], _Metadata)
        return cls._of(manifest["kind"], metadata, lambda: manifest)

    @classmethod
    def read(cls, raw: msgspec.Raw, kind: ObjectKind) -> Self:
        """Returns an object from JSON. kind is given because items of lists omit it. Raises msgspec.DecodeError."""
        return cls._of(kind.kind, _OBJECT.decode(raw).metadata, partial(_decode, kind, raw), len(raw))

    @classmethod
    def _of(cls, kind: str, metadata: _Metadata, decode: Callable[[], Manifest], size: int = 0) -> Self:
        owner = next((owner for owner in metadata.ownerReferences or () if owner.controller), None)
        return cls(
            key=ObjectKey(kind, metadata.namespace, metadata.name),
            version=parse_version(metadata.resourceVersion),
            controller=None if owner is None else ControllerRef(owner.kind, owner.name),
            labels=metadata.labels or {},
            created=metadata.creationTimestamp or "",
            decode=decode,
            size=size,
        )


@dataclass(frozen=True, slots=True)
class Root:
    """The kind of object that all other objects of a store belong to."""

    kind: str
    label: str
    """Label that names an object's root, used if no object of the root's kind controls it."""

    def find(self, seen: Seen) -> NamespacedName | None:
        """Returns the root that an object is or belongs to, None if there is none."""
        namespace = seen.key.namespace
        if seen.key.kind == self.kind:
            return NamespacedName(namespace, seen.key.name)
        if seen.controller is not None and seen.controller.kind == self.kind:
            return NamespacedName(namespace, seen.controller.name)
        name = seen.labels.get(self.label)
        return NamespacedName(namespace, name) if name else None


def read_version(raw: msgspec.Raw) -> str:
    """Returns the resource version of a bookmark's object. Raises msgspec.DecodeError."""
    return _OBJECT.decode(raw).metadata.resourceVersion


def _decode(kind: ObjectKind, raw: msgspec.Raw) -> Manifest:
    members = _MEMBERS.decode(raw)
    # Items of lists omit the kind, and responses with only metadata have another kind (PartialObjectMetadata).
    manifest = {name: msgspec.json.decode(member) for name, member in members.items() if name != "metadata"}
    metadata = _MEMBERS.decode(members["metadata"])
    # managedFields records who wrote which field. It may be a third of an object, and nothing here reads it.
    metadata.pop("managedFields", None)
    manifest["metadata"] = {name: msgspec.json.decode(member) for name, member in metadata.items()}
    return manifest | {"apiVersion": kind.api_version, "kind": kind.kind}


class Page(NamedTuple):
    """A page of a list."""

    items: list[Seen]
    version: str
    """Resource version of the whole list."""
    rest: str
    """The `continue` token that requests the next page; empty for the last page."""


class WatchEvent(NamedTuple):
    """A line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: str
    """Resource version up to which the watch has reported all changes."""
    seen: Seen | None = None
    """The object; None for a bookmark."""


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""
    rest: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_LINE = msgspec.json.Decoder(_Line)
_LIST = msgspec.json.Decoder(_List)


def parse_page(content: bytes, kind: ObjectKind) -> Page:
    """Returns a page of a list of a kind. Raises msgspec.DecodeError, which is a ValueError."""
    page = _LIST.decode(content)
    items = [Seen.read(item, kind) for item in page.items or ()]
    return Page(items, page.metadata.resourceVersion, page.metadata.rest)


def parse_events(
    lines: Iterable[bytes], kind: ObjectKind, path: str
) -> tuple[list[WatchEvent], ApiError | ValueError | None]:
    """Returns the events in the lines of a watch. Stops at the first line that parse_event refuses; also returns its
    error."""
    events: list[WatchEvent] = []
    try:
        for line in lines:
            events.append(parse_event(line, kind, path))
    except (ApiError, ValueError) as error:
        return events, error
    return events, None


def parse_event(line: bytes, kind: ObjectKind, path: str) -> WatchEvent:
    """Returns the event in a line of the watch of a path.

    Raises ApiError for an event of type ERROR, and msgspec.DecodeError, which is a ValueError.
    """
    event = _LINE.decode(line)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object)
        raise api_error(int(status.get("code") or 500), status, call=f"watch {path}")
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, read_version(event.object))
    seen = Seen.read(event.object, kind)
    return WatchEvent(event.type, str(seen.version), seen)
