"""What is common to every object that the operator writes: its kind, its key, its canonical form.

Objects are plain JSON (`Manifest`), as the API server takes and gives them: building typed models of the client
library costs several times the CPU of the call itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""A Kubernetes object as JSON."""

FIELD_MANAGER: Final = "omnipipeline-operator"
"""Name under which the operator owns fields (server-side apply), and value of app.kubernetes.io/managed-by."""


PIPELINE_KIND: Final = "OmniPipeline"


class ChildKey(NamedTuple):
    """An object in the pipeline's namespace."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class ChildKind:
    """A kind of object that the operator writes."""

    kind: str
    api_version: str
    """GROUP/VERSION, or VERSION for the core group."""
    plural: str
    """Its name in URLs and in RBAC rules."""
    optional: bool = False
    """Whether a cluster may lack this API."""
    metadata_only: bool = False
    """Whether lists and watches ask for metadata alone: the rest may be a megabyte, and is read where it matters."""

    @property
    def group(self) -> str:
        """API group; "" is the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str, name: str = "") -> str:
        """URL path of the collection in a namespace, or of one object; namespace "" is all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{middle}/{self.plural}" + (f"/{name}" if name else "")


CHILD_KINDS: Final = (
    ChildKind("ServiceAccount", "v1", "serviceaccounts"),
    ChildKind("ConfigMap", "v1", "configmaps", metadata_only=True),
    ChildKind("ControllerRevision", "apps/v1", "controllerrevisions"),
    ChildKind("Service", "v1", "services"),
    ChildKind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    ChildKind("Deployment", "apps/v1", "deployments"),
    ChildKind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    ChildKind("PodMonitor", "monitoring.coreos.com/v1", "podmonitors", optional=True),
)
"""Every kind that the operator writes, each after what it needs."""

KIND_BY_NAME: Final = {kind.kind: kind for kind in CHILD_KINDS}


def key_of(manifest: Manifest) -> ChildKey:
    """Kind and name of an object whose kind is filled in (list items of the API lack it)."""
    return ChildKey(manifest["kind"], manifest["metadata"]["name"])


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values: keys sorted, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: Any, length: int) -> str:
    """The first characters of the sha256 (hexadecimal) of a JSON value's canonical form."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]
