"""Objects as watches and lists bring them: who they are and what they concern, the rest undecoded until it is news.

A pipeline's start makes some sixty events, a third of them echoes of our own writes: only what is news is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import msgspec

from omni_kube.objects import PIPELINE_KIND, ChildKind, Manifest
from omni_operator.state.slim import slim_seen
from omni_proto.pod_contract import PIPELINE_LABEL


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


def version_of(manifest: Manifest) -> int:
    """Resource version of an object as a number; 0 if it is none."""
    return parse_version(manifest.get("metadata", {}).get("resourceVersion", ""))


def parse_version(text: str) -> int:
    """A resource version as a number; 0 if it is none."""
    return int(text) if text.isascii() and text.isdigit() else 0


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


def pipeline_of(manifest: Manifest) -> PipelineKey | None:
    """The pipeline that an object is or belongs to: the one that controls it, else the one its label names, or None."""
    return _pipeline_of(manifest["kind"], msgspec.convert(manifest["metadata"], _Metadata))


def _pipeline_of(kind: str, metadata: _Metadata) -> PipelineKey | None:
    if kind == PIPELINE_KIND:
        return PipelineKey(metadata.namespace, metadata.name)
    for owner in metadata.ownerReferences or ():
        if owner.controller and owner.kind == PIPELINE_KIND:
            return PipelineKey(metadata.namespace, owner.name)
    label = (metadata.labels or {}).get(PIPELINE_LABEL)
    return PipelineKey(metadata.namespace, label) if label else None


@dataclass(frozen=True, slots=True)
class Seen:
    """An object that a watch, a list or an answer brought."""

    key: ObjectKey
    version: int
    pipeline: PipelineKey | None
    """The pipeline that it is or belongs to."""
    encode: Callable[[], bytes]
    """What is kept of the object (slim.py), as compact JSON."""
    created: str = ""
    """When it was created."""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """A decoded object. Raises msgspec.ValidationError for metadata that no API server sends."""
        metadata = msgspec.convert(manifest["metadata"], _Metadata)
        return cls._of(manifest["kind"], metadata, partial(_encode_manifest, manifest))

    @classmethod
    def read(cls, raw: msgspec.Raw, kind: ChildKind) -> Self:
        """An object of a kind as JSON; items of lists do not name their kind. Raises msgspec.DecodeError."""
        members = _MEMBERS.decode(raw)
        metadata = _METADATA.decode(_metadata_of(members))
        return cls._of(kind.kind, metadata, partial(_encode_members, kind, members))

    @classmethod
    def _of(cls, kind: str, metadata: _Metadata, encode: Callable[[], bytes]) -> Self:
        key = ObjectKey(kind, metadata.namespace, metadata.name)
        version, created = parse_version(metadata.resourceVersion), metadata.creationTimestamp or ""
        return cls(key, version, _pipeline_of(kind, metadata), encode, created)


def read_version(raw: msgspec.Raw) -> str:
    """The resource version of a bookmark's object. Raises msgspec.DecodeError."""
    return _METADATA.decode(_metadata_of(_MEMBERS.decode(raw))).resourceVersion


def _metadata_of(members: Mapping[str, msgspec.Raw]) -> msgspec.Raw:
    if "metadata" not in members:
        raise msgspec.ValidationError("an object without metadata")
    return members["metadata"]


def _encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.encode(slim_seen(manifest))


def _encode_members(kind: ChildKind, members: Mapping[str, msgspec.Raw]) -> bytes:
    # Lists do not name the kind, and answers of metadata alone name another one.
    manifest = {name: msgspec.json.decode(member) for name, member in members.items()}
    return _encode_manifest(manifest | {"apiVersion": kind.api_version, "kind": kind.kind})
