"""Kubernetes objects as plain JSON: their keys, accessors for fields that all kinds share, and a canonical form.

Objects keep the API server's JSON form: building the client library's typed models costs several times the CPU of the
call itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON."""


class NamespacedName(NamedTuple):
    """An object whose kind is known from the context."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObjectKey(NamedTuple):
    """An object of any kind."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object, and how to request it from the API server."""

    kind: str
    api_version: str
    """GROUP/VERSION, or VERSION for the core group."""
    plural: str
    """Its name in URLs and in RBAC rules."""
    optional: bool = False
    """Whether a cluster may lack this API."""
    metadata_only: bool = False
    """Whether lists and watches request only metadata: the rest may be a megabyte, and is read only where needed."""

    @property
    def group(self) -> str:
        """API group; "" is the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str, name: str = "") -> str:
        """Returns the URL path of the collection in a namespace, or of one object; namespace "" is all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "")


def parse_version(text: str) -> int:
    """Returns a resource version as a number; 0 if text is not a number."""
    return int(text) if text.isascii() and text.isdigit() else 0


def version_of(manifest: Manifest) -> int:
    """Returns the resource version of an object as a number; 0 if it is absent or not a number."""
    return parse_version(manifest.get("metadata", {}).get("resourceVersion", ""))


def value_at(manifest: Manifest | None, *path: str, default: Any) -> Any:
    """Returns the value at a path; the default where it is absent or null."""
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return default if value is None else value


def controller_of(manifest: Manifest) -> Mapping[str, Any] | None:
    """Returns the ownerReference of the object's controller, None if it has none."""
    return next((owner for owner in manifest["metadata"].get("ownerReferences", ()) if owner.get("controller")), None)


def find_condition(manifest: Manifest | None, kind: str) -> Mapping[str, Any] | None:
    """Returns the condition of that type in an object's status, None if there is none."""
    conditions = value_at(manifest, "status", "conditions", default=())
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def is_terminating(manifest: Manifest) -> bool:
    """Returns whether the object is being deleted."""
    return "deletionTimestamp" in manifest["metadata"]


def parse_time(text: str) -> datetime:
    """Returns the time in a timestamp of the API (RFC 3339)."""
    return datetime.fromisoformat(text)


def canonical_json(value: Any) -> str:
    """Returns JSON text that is equal for equal values: keys sorted, no spaces, ASCII."""
    return _CANONICAL.encode(value)


def content_hash(value: Any, length: int) -> str:
    """Returns the first characters of the sha256 (hexadecimal) of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]
