"""Reduces a watched object to the fields that decisions read, so that the store keeps no others. Pure functions.

Another owner's object may be a megabyte in size, and anyone can give it the pipeline's label, so only a few of its
metadata fields are kept. A pipeline's pods, ReplicaSets and Deployments have thousands of lines, but the operator reads
only a few fields. Once a child has been found to match the desired state (rollout.plan.Verified), the store keeps its
hash and these few fields until the child changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from omni_kube.objects import Manifest
from omni_operator.kinds import (
    FIELD_MANAGER,
    KIND_BY_NAME,
    PIPELINE_KIND,
    ROUTE_KINDS,
    SLICE_MANAGER_LABEL,
    SLICE_SERVICE_LABEL,
)
from omni_operator.names import DESIRED_HASH_ANNOTATION, TOKEN_VOLUME
from omni_operator.state.observed import is_sealed
from omni_proto.pipeline.read.load import MAX_SPEC_BYTES
from omni_proto.pipeline.types.scaling import STAGE_KIND
from omni_proto.pod_contract import PIPELINE_LABEL, REVISION_LABEL, STAGE_LABEL

SLIM: Final = "slim"
"""Set in the copy of a child that lacks fields of the live object: such a copy cannot be compared with a manifest."""

SPEC_BYTES: Final = "specBytes"
"""Size in bytes of a spec that is too large. Nothing else of such a spec is stored."""

MAX_BYTES: Final = 64 << 10
"""Maximum size of a reduced pod, ReplicaSet or EndpointSlice, and of a child that is kept whole. A stage's pod has a
few KiB, mostly messages of containers that ended, so a larger object belongs to another owner."""
MAX_REVISION_BYTES: Final = 2 * MAX_SPEC_BYTES
"""The same for a ControllerRevision, which holds a spec."""
_MAX_NAME: Final = 253
"""Maximum length of each text in a reference to an owner; longer texts are cut."""

_LABELS: Final = (PIPELINE_LABEL, STAGE_LABEL, REVISION_LABEL, SLICE_SERVICE_LABEL, SLICE_MANAGER_LABEL)
_METADATA: Final = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
)  # fmt: skip


def slim_seen(manifest: Manifest) -> Manifest:
    """Returns the part of a received object to store.

    A pipeline loses its managedFields and annotations, and a spec that is too large. A pipeline's own children lose
    only managedFields, except ConfigMaps and children that are too large (see slim_child). Pods, ReplicaSets,
    EndpointSlices and objects of other owners keep only the fields that decisions read. A child without a controller
    that the operator has written counts as the pipeline's own.
    """
    kind = manifest["kind"]
    if kind == PIPELINE_KIND:
        metadata = {key: value for key, value in manifest["metadata"].items() if key not in _UNREAD_METADATA}
        return manifest | {"metadata": metadata} | _bounded_spec(manifest)
    if kind in _OTHERS:
        reduced = _OTHERS[kind](manifest)
        return reduced if _size(reduced) <= MAX_BYTES else _bare(manifest) | {"spec": {}}
    if kind in KIND_BY_NAME and not _may_belong(manifest):
        return _bare(manifest) | {SLIM: True}
    if kind == "ConfigMap":
        return slim_child(manifest)
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    whole = manifest | {"metadata": metadata}
    limit = MAX_REVISION_BYTES if kind == "ControllerRevision" else MAX_BYTES
    return whole if _size(whole) <= limit else slim_child(manifest)


def slim_child(manifest: Manifest) -> Manifest:
    """Returns the part of a child that is stored if it matches its desired-hash annotation, is immutable (a ConfigMap),
    or is too large to be stored whole."""
    slim = _bare(manifest)
    annotations = manifest["metadata"].get("annotations") or {}
    if DESIRED_HASH_ANNOTATION in annotations:
        slim["metadata"]["annotations"] = {DESIRED_HASH_ANNOTATION: annotations[DESIRED_HASH_ANNOTATION]}
    return slim | _SPECS.get(manifest["kind"], _nothing)(manifest) | {SLIM: True}


def can_slim(manifest: Manifest) -> bool:
    """Returns whether a verified child may be kept as a hash. Not a ControllerRevision, whose data is read, nor a
    route, whose status is read."""
    return SLIM not in manifest and manifest["kind"] not in ("ControllerRevision", *ROUTE_KINDS)


_UNREAD_METADATA: Final = frozenset({"managedFields", "annotations"})


def _bare(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    labels = metadata.get("labels") or {}
    kept["labels"] = {key: labels[key] for key in _LABELS if key in labels}
    if owner := _controller(manifest):
        # Decisions read only the owner that is the controller. Anyone can list thousands of other owners, with long
        # names.
        kept["ownerReferences"] = [
            {key: value[:_MAX_NAME] if isinstance(value, str) else value for key, value in owner.items()}
        ]
    return {"apiVersion": manifest.get("apiVersion", ""), "kind": manifest["kind"], "metadata": kept}


def _bounded_spec(manifest: Manifest) -> Manifest:
    """Returns a spec that holds only the size, if the manifest's spec is too large; otherwise an empty dict."""
    size = _size(manifest.get("spec") or {})
    return {"spec": {SPEC_BYTES: size}} if size > MAX_SPEC_BYTES else {}


def _controller(manifest: Manifest) -> Manifest:
    """Returns the reference to the object's controller; empty if it has none."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    owner: Manifest = next((owner for owner in owners if owner.get("controller")), {})
    return _pick(owner, "apiVersion", "kind", "name", "uid", "controller")


def _controller_kind(manifest: Manifest) -> str:
    return str(_controller(manifest).get("kind", ""))


def _may_belong(manifest: Manifest) -> bool:
    """Returns whether a child may belong to a pipeline; see Observed.owns."""
    owner = _controller(manifest)
    return owner["kind"] == PIPELINE_KIND if owner else is_sealed(manifest)


def _size(manifest: Manifest) -> int:
    return len(msgspec.json.encode(manifest))


def _slim_pod(manifest: Manifest) -> Manifest:
    if _controller_kind(manifest) != "ReplicaSet":
        return _bare(manifest) | {"spec": {}}
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    kept = _pod_spec(spec) | _pick(spec, "nodeName")
    if token := next((one for one in spec.get("volumes") or () if one.get("name") == TOKEN_VOLUME), None):
        kept["volumes"] = [*kept.get("volumes", ()), _pick(token, "name", "secret")]
    statuses = _pick(status, "phase", "reason", "message", "conditions", "podIP")
    for name in ("initContainerStatuses", "containerStatuses"):
        if name in status:
            statuses[name] = [
                _pick(entry, "name", "ready", "state", "lastState", "restartCount") for entry in status[name] or ()
            ]
    return _bare(manifest) | {"spec": kept, "status": statuses}


def _slim_replica_set(manifest: Manifest) -> Manifest:
    return _bare(manifest) | _workload(manifest)


def _slim_endpoints(manifest: Manifest) -> Manifest:
    endpoints = [
        _pick(endpoint, "conditions", "addresses") | _pick_in(endpoint, "targetRef", "uid")
        for endpoint in manifest.get("endpoints") or ()
    ]
    reduced = _bare(manifest) | {"endpoints": endpoints}
    ours = reduced["metadata"]["labels"].get(SLICE_MANAGER_LABEL) == FIELD_MANAGER
    return reduced | (_pick(manifest, "ports") if ours else {})


def _workload(manifest: Manifest) -> Manifest:
    """Returns what decisions read of a Deployment or ReplicaSet: replicas, selector, time limits, whether it is paused,
    references to ConfigMaps, and status.
    """
    spec = manifest.get("spec") or {}
    pod = (spec.get("template") or {}).get("spec") or {}
    template = _references(pod) | _pick(pod, "terminationGracePeriodSeconds")
    kept = _pick(spec, "replicas", "selector", "progressDeadlineSeconds", "paused") | {"template": {"spec": template}}
    return {"spec": kept} | _pick(manifest, "status")


def _service(manifest: Manifest) -> Manifest:
    return {"spec": _pick(manifest.get("spec") or {}, "selector", "ports", "type", "loadBalancerClass")}


def _scale_target(manifest: Manifest) -> Manifest:
    return {"spec": _pick(manifest.get("spec") or {}, "replicas")} | _pick(manifest, "status")


def _nothing(manifest: Manifest) -> Manifest:
    return {}


def _pod_spec(spec: Mapping[str, Any]) -> Manifest:
    kept = _references(spec)
    for name in ("initContainers", "containers"):
        for container, source in zip(kept.get(name, ()), spec.get(name) or (), strict=True):
            container |= _pick(source, "name", "image") | _pick_in(source, "resources", "limits")
    return kept


def _references(spec: Mapping[str, Any]) -> Manifest:
    """Returns the parts of a pod's spec that refer to ConfigMaps."""
    kept: Manifest = {}
    volumes = [_pick(volume, "configMap", "projected") for volume in spec.get("volumes") or ()]
    if volumes := [volume for volume in volumes if volume]:
        kept["volumes"] = volumes
    for name in ("initContainers", "containers"):
        if name in spec:
            kept[name] = [_variables(container) for container in spec[name] or ()]
    return kept


def _variables(container: Mapping[str, Any]) -> Manifest:
    kept = _pick(container, "envFrom")
    variables = [_pick(one, "valueFrom") for one in container.get("env") or () if one.get("valueFrom")]
    return kept | ({"env": variables} if variables else {})


def _pick(source: Mapping[str, Any], *names: str) -> Manifest:
    return {name: source[name] for name in names if name in source}


def _pick_in(source: Mapping[str, Any], name: str, *names: str) -> Manifest:
    inner = source.get(name)
    return {name: _pick(inner, *names)} if inner else {}


_OTHERS: Final[Mapping[str, Callable[[Manifest], Manifest]]] = {
    "Pod": _slim_pod,
    "ReplicaSet": _slim_replica_set,
    "EndpointSlice": _slim_endpoints,
}
"""How to reduce objects of kinds that the operator does not write."""
_SPECS: Final[Mapping[str, Callable[[Manifest], Manifest]]] = {
    "Deployment": _workload,
    "Service": _service,
    STAGE_KIND: _scale_target,
}
"""The fields of a child that decisions read in addition to its metadata."""
