"""A stage's placement fields have the types and enums of core/v1: compares our CRD with the API server, field by field.

The types in `omni_proto/pipeline/types/kubernetes.py` are written by hand, because every string and list in a CRD with
CEL rules needs a bound, and upstream's types have none (ADR 0024). Apart from bounds and LEFT_OUT, this test keeps them
equal to upstream's types.
"""

from __future__ import annotations

from typing import Any

import pytest
from tools.export_schemas import GROUP, PLURAL

from support.controlplane.server.api_server import ApiServer

pytestmark = pytest.mark.controlplane

CORE = "io.k8s.api.core.v1."
PLACEMENT = {
    "tolerations[]": "Toleration",
    "affinity": "Affinity",
    "topology[]": "TopologySpreadConstraint",
    "resources": "ResourceRequirements",
    "imagePullSecrets[]": "LocalObjectReference",
    "env[]": "EnvVar",
    "envFrom[]": "EnvFromSource",
    "volumes[]": "Volume",
    "volumeMounts[]": "VolumeMount",
    "resourceClaims[]": "PodResourceClaim",
    "podSecurityContext": "PodSecurityContext",
}
"""Field of a stage -> its type in core/v1."""

_UNSAFE = "would weaken Pod Security or isolation"
_WRITABLE = "of a kind that is written to, of a cloud, or made by the pod itself; CSI and claims stand for all"
LEFT_OUT = {
    **{
        f"volumes[].{name}": _WRITABLE
        for name in (
            *("awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "downwardAPI", "emptyDir"),
            *("ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "iscsi", "nfs"),
            *("photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd", "scaleIO", "storageos"),
            "vsphereVolume",
        )
    },
    "volumes[].hostPath": _UNSAFE,
    "env[].valueFrom.fieldRef.apiVersion": "v1 is the only one",
    "env[].valueFrom.resourceFieldRef": "the operator sets the number of threads",
    "env[].valueFrom.fileKeyRef": "alpha",
    "volumeMounts[].mountPropagation": _UNSAFE,
    "volumeMounts[].recursiveReadOnly": "not on all nodes; mounts are read-only",
    "volumeMounts[].subPathExpr": "subPath is enough for volumes that nobody writes to",
    **{
        f"podSecurityContext.{name}": f"set by the operator, or {_UNSAFE}"
        for name in (
            *("appArmorProfile", "runAsNonRoot", "seLinuxChangePolicy", "seLinuxOptions", "seccompProfile"),
            *("supplementalGroupsPolicy", "sysctls", "windowsOptions"),
        )
    },
    "topology[].labelSelector": "set by the operator: the pods of the stage's revision",
    "topology[].matchLabelKeys": "set by the operator: pod-template-hash",
    "topology[].minDomains": "only DoNotSchedule uses it, which few small pipelines set",
    "topology[].nodeAffinityPolicy": "upstream's default, Honor",
    "topology[].nodeTaintsPolicy": "upstream's default, Ignore",
    "namespaces": "a pipeline sees its own namespace only",
    "namespaceSelector": "a pipeline sees its own namespace only",
    "matchLabelKeys": "not needed: revisions differ in a label of ours",
    "mismatchLabelKeys": "not needed: revisions differ in a label of ours",
}
"""Field of upstream that we do not offer -> the reason. The key is a path, or a name that matches at any path."""


def resolve(schemas: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with `$ref`s resolved. Upstream writes a `$ref` by itself or in an `allOf` with one item."""
    for part in schema.get("allOf", []):
        schema = {**schema, **part}
    return resolve(schemas, schemas[schema["$ref"].rpartition("/")[2]]) if "$ref" in schema else schema


def compare(path: str, ours: dict[str, Any], theirs: dict[str, Any], schemas: dict[str, Any]) -> list[str]:
    """Returns the differences from upstream at `path` and below.

    A field of upstream that we lack is a difference unless LEFT_OUT names it.
    """
    theirs = resolve(schemas, theirs)
    if "anyOf" in ours or "oneOf" in theirs:  # a quantity: an integer or a string in both
        return []
    found = [] if ours["type"] == theirs["type"] else [f"{path}: {ours['type']} is {theirs['type']} upstream"]
    if "enum" in theirs and set(ours.get("enum", [])) != set(theirs["enum"]):  # upstream's label selectors have no enum
        found.append(f"{path}: {ours.get('enum')} is {theirs.get('enum')} upstream")
    if "items" in theirs:
        return found + compare(f"{path}[]", ours["items"], theirs["items"], schemas)
    fields = ours.get("properties", {})
    for name, field in theirs.get("properties", {}).items():
        below = f"{path}.{name}"
        if name in fields:
            found += compare(below, fields[name], field, schemas)
        elif below not in LEFT_OUT and name not in LEFT_OUT:
            found.append(f"{below}: upstream's, not ours, and not named in LEFT_OUT")
    found += [f"{path}.{name}: not upstream's" for name in fields.keys() - theirs.get("properties", {}).keys()]
    found += [
        f"{path}.{name}: upstream requires it; ours neither requires it nor has a default"
        for name in theirs.get("required", [])
        if name in fields and name not in ours.get("required", []) and not {"default", "enum"} & fields[name].keys()
    ]
    return found


@pytest.fixture(scope="module")
def upstream(api_server: ApiServer) -> dict[str, Any]:
    """Returns the schemas of core/v1, by name."""
    schemas: dict[str, Any] = api_server.admin.call("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    return schemas


@pytest.fixture(scope="module")
def stage(api_server: ApiServer) -> dict[str, Any]:
    """Returns the schema of one stage, as the API server stores it."""
    crd = api_server.admin.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}")
    pipeline = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = pipeline["properties"]["spec"]["properties"]["stages"]["items"]["properties"]
    return found


@pytest.mark.parametrize("field", PLACEMENT)
def test_placement_is_what_core_v1_says(upstream: dict[str, Any], stage: dict[str, Any], field: str) -> None:
    ours = stage[field.removesuffix("[]")]
    assert (
        compare(field, ours["items"] if field.endswith("[]") else ours, upstream[CORE + PLACEMENT[field]], upstream)
        == []
    )


def test_a_difference_is_found(upstream: dict[str, Any], stage: dict[str, Any]) -> None:
    odd = {"type": "object", "properties": {"key": {"type": "integer"}, "effects": {"type": "string"}}}
    found = compare("t", odd, upstream[CORE + "Toleration"], upstream)
    assert "t.key: integer is string upstream" in found
    assert "t.effects: not upstream's" in found
    assert any(line.startswith("t.tolerationSeconds: upstream's") for line in found)


def test_what_is_left_out_exists_upstream(upstream: dict[str, Any], stage: dict[str, Any]) -> None:
    names = {name for schema in upstream.values() for name in schema.get("properties", {})}
    assert {path.rpartition(".")[2] for path in LEFT_OUT} <= names
