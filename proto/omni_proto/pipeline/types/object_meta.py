"""The schema of a Kubernetes object's metadata in a file. Not part of the CRD: the API server checks it by itself."""

from __future__ import annotations

from typing import Any, Final

from omni_proto.pipeline.types import kubernetes as k8s

_KEY: Final = {"pattern": k8s.LABEL_KEY_PATTERN.removesuffix("$") + r"\Z", "maxLength": 317}
_VALUE: Final = {"type": "string", "pattern": k8s.LABEL_VALUE_PATTERN.removesuffix("$") + r"\Z", "maxLength": 63}

OBJECT_META_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "namespace": {
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "pattern": k8s.NAMESPACE_PATTERN.removesuffix("$") + r"\Z",
        },
        "labels": {"type": ["object", "null"], "propertyNames": _KEY, "additionalProperties": _VALUE},
        "annotations": {
            "type": ["object", "null"],
            # Unlike in the keys of labels, the domain may contain upper-case letters.
            "propertyNames": {**_KEY, "pattern": f"(?i){_KEY['pattern']}"},
            "additionalProperties": {"type": "string"},
        },
        "finalizers": {"type": ["array", "null"], "items": {"type": "string"}},
        "ownerReferences": {"type": ["array", "null"], "items": {"type": "object"}},
        # Fields that the API server writes; files exported from it contain them.
        **{
            name: {}
            for name in (
                "creationTimestamp",
                "deletionGracePeriodSeconds",
                "deletionTimestamp",
                "generateName",
                "generation",
                "managedFields",
                "resourceVersion",
                "selfLink",
                "uid",
            )
        },
    },
    "additionalProperties": False,
}
"""JSON schema of metadata (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/)."""
