"""Metadata of every child, and the annotation with the hash of what the operator last applied (the seal)."""

from __future__ import annotations

from collections.abc import Mapping

from omni_kube.objects import Manifest, content_hash
from omni_operator.desired.build_settings import Owner
from omni_operator.kinds import KIND_BY_NAME
from omni_operator.names import DESIRED_HASH_ANNOTATION
from omni_proto.pipeline import API_VERSION, KIND

_HASH_LENGTH = 16


def build_child(
    kind: str,
    name: str,
    owner: Owner,
    labels: dict[str, str],
    content: Manifest,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Returns a sealed child: kind, metadata with owner, labels and annotations, and content (spec, data ...)."""
    metadata: Manifest = {"name": name, "namespace": owner.namespace, "labels": labels}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if owner.uid:
        metadata["ownerReferences"] = [owner_reference(owner)]
    return seal({"apiVersion": KIND_BY_NAME[kind].api_version, "kind": kind, "metadata": metadata, **content})


def seal(manifest: Manifest) -> Manifest:
    """Returns the manifest with an annotation that holds its hash. An equal hash means an equal desired manifest."""
    metadata = manifest["metadata"]
    annotations = {
        key: value for key, value in metadata.get("annotations", {}).items() if key != DESIRED_HASH_ANNOTATION
    }
    bare = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    sealed = {**annotations, DESIRED_HASH_ANNOTATION: content_hash(bare, _HASH_LENGTH)}
    return {**manifest, "metadata": {**metadata, "annotations": sealed}}


def owner_reference(owner: Owner) -> Manifest:
    """Returns the reference that makes a pipeline the controller of an object."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        # A foreground deletion then waits until the pods have ended.
        "blockOwnerDeletion": True,
    }
