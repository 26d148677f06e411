"""The API server of the simulated cluster: objects in memory, and queries of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from omni_kube.objects import Manifest
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.plan import Prune
from omni_proto.pod_contract import REVISION_LABEL, STAGE_LABEL

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def format_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class SimulatedApi:
    """Objects as the real API server returns them, but with few of the fields that a real cluster would add."""

    pipeline: Manifest
    now: datetime = START
    children: dict[ChildKey, Manifest] = field(default_factory=dict)
    replica_sets: dict[str, Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    counter: int = 0
    writes: int = 0
    """Number of the operator's writes to children."""
    before_write: list[Callable[[Manifest | Prune], None]] = field(default_factory=list)
    """Called with each write before the write is made."""

    def edit(self, **spec: Any) -> None:
        """Edits the spec as a user would. None removes a field."""
        new = {key: value for key, value in {**self.pipeline["spec"], **spec}.items() if value is not None}
        if new != self.pipeline["spec"]:
            self.pipeline["spec"] = copy.deepcopy(new)
            self.pipeline["metadata"]["generation"] += 1

    def next_id(self) -> int:
        self.counter += 1
        return self.counter

    def apply(self, manifest: Manifest) -> None:
        """Applies a manifest as server-side apply does with a single field manager.

        Raises ValueError if immutable data would change.
        """
        for hook in self.before_write:
            hook(manifest)
        self.writes += 1
        key = key_of(manifest)
        live = self.children.get(key)
        new = _default(copy.deepcopy(manifest))
        metadata = new["metadata"]
        if live is None:
            metadata |= {"uid": f"uid-{self.next_id()}", "generation": 1, "creationTimestamp": format_time(self.now)}
        else:
            if key.kind in ("ConfigMap", "ControllerRevision") and live.get("data") != new.get("data"):
                raise ValueError(f"{key} is immutable")
            metadata |= {name: live["metadata"][name] for name in ("uid", "generation", "creationTimestamp")}
            if live.get("spec") != new.get("spec"):
                metadata["generation"] += 1
            if "spec" in live and "spec" not in new:
                new["spec"] = live["spec"]  # another manager's
            if "status" in live:
                new["status"] = live["status"]
        metadata["resourceVersion"] = str(self.next_id())
        self.children[key] = new

    def prune(self, prune: Prune) -> None:
        """Deletes a child, unless its uid or resourceVersion has changed."""
        for hook in self.before_write:
            hook(prune)
        self.writes += 1
        live = self.children.get(prune.key)
        if live is not None and (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) == prune[1:]:
            self.delete(prune.key)

    def delete(self, key: ChildKey) -> None:
        """Deletes a child. collect_garbage deletes the objects that it owns."""
        del self.children[key]

    def endpoints(self) -> dict[str, int]:
        """Returns Service -> number of ready endpoints, as if the EndpointSlice controller were up to date."""
        return {
            key.name: sum(is_ready(pod) and _selects(child["spec"]["selector"], pod) for pod in self.pods.values())
            for key, child in self.children.items()
            if key.kind == "Service"
        }

    def revision_pods(self, revision: str, stage: str) -> list[Manifest]:
        """Returns the pods of a stage in a revision, including terminating ones."""
        return [pod for pod in self.pods.values() if member_of(pod) == (stage, revision)]

    def condition(self, kind: str) -> tuple[str, str]:
        """Returns the status and reason of a condition of the pipeline."""
        found = next(item for item in self.pipeline["status"]["conditions"] if item["type"] == kind)
        return found["status"], found["reason"]

    def selected(self) -> str | None:
        """Returns the revision that the entry Service selects."""
        service = self.children.get(ChildKey("Service", self.pipeline["metadata"]["name"]))
        return None if service is None else service["spec"]["selector"].get(REVISION_LABEL)

    def revisions(self) -> set[str]:
        """Returns the revisions that have a Deployment."""
        return {
            child["metadata"]["labels"][REVISION_LABEL]
            for key, child in self.children.items()
            if key.kind == "Deployment"
        }


def member_of(manifest: Manifest) -> tuple[str, str]:
    """Returns the stage and the revision from an object's labels."""
    labels = manifest["metadata"]["labels"]
    return labels[STAGE_LABEL], labels[REVISION_LABEL]


def owner_of(manifest: Manifest) -> str:
    """Returns the uid of the object's controller."""
    return str(manifest["metadata"]["ownerReferences"][0]["uid"])


def is_ready(pod: Manifest) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"]["conditions"])


def set_ready(pod: Manifest, ready: bool) -> None:
    rest = [item for item in pod["status"]["conditions"] if item["type"] != "Ready"]
    pod["status"]["conditions"] = [*rest, {"type": "Ready", "status": str(ready)}]
    if ready:
        pod["status"]["phase"] = "Running"


def _selects(selector: dict[str, str], pod: Manifest) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


def _default(manifest: Manifest) -> Manifest:
    """Returns the manifest with a few of the defaults that the API server fills in."""
    if manifest["kind"] == "Service":
        manifest["spec"].setdefault("sessionAffinity", "None")
        for port in manifest["spec"]["ports"]:
            port.setdefault("protocol", "TCP")
    if manifest["kind"] == "Deployment":
        spec = manifest["spec"]["template"]["spec"]
        spec.setdefault("restartPolicy", "Always")
        for container in spec["containers"]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
    return manifest
