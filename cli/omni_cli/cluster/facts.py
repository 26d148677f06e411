"""What `omnipipe doctor` reads from a cluster. Nothing is changed: pods are created only as a dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omni_cli.cluster.access import Cluster, ClusterError, Document
from omni_proto.pipeline import API_VERSION, KIND
from omni_proto.pipeline.types.scaling import STAGE_KIND

CRDS: Final = {KIND: "omnipipelines", STAGE_KIND: "omnistages"}
"""The plural of each kind that the chart's CRDs define."""
OPERATORS: Final = "app.kubernetes.io/name=omnipipeline-operator"
RIGHTS: Final = (
    ("create", API_VERSION.partition("/")[0], "omnipipelines", ""),
    ("create", "", "pods", "portforward"),
    ("get", "", "pods", "log"),
)
"""Verb, API group, resource and subresource that the other commands need."""
SCRATCH_POD: Final[Document] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "omnipipe-doctor-", "labels": {"app.kubernetes.io/name": "omnipipe-doctor"}},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "stage",
                "image": "omnipipeline-stage",
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}
"""A pod as restricted as a stage's, with resources that fit anywhere."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be read, and why."""

    why: str
    status: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a cluster; a field is Unknown if the user may not read it."""

    namespace: str
    version: Document | Unknown
    crds: Mapping[str, Document | Unknown]
    """The CRD of each kind in CRDS."""
    operators: Sequence[Document] | Unknown
    nodes: Sequence[Document] | Unknown
    space: Document | Unknown
    """The namespace."""
    policies: Sequence[Document] | Unknown
    quotas: Sequence[Document] | Unknown
    classes: Sequence[Document] | Unknown
    """Storage classes."""
    groups: Document | Unknown
    """The API groups that the server has."""
    admitted: Document | Unknown
    """A pod that the API server would admit."""
    rights: Mapping[str, bool | Unknown] = field(default_factory=dict)


def gather(cluster: Cluster) -> Facts:
    """Returns what the user may read. Raises ClusterError if the API server does not answer at all."""
    namespace = cluster.namespace
    base = f"/api/v1/namespaces/{namespace}"
    return Facts(
        namespace=namespace,
        version=cluster.get("/version"),
        crds={kind: _crd(cluster, plural) for kind, plural in CRDS.items()},
        operators=_try(lambda: cluster.items("/apis/apps/v1/deployments", labelSelector=OPERATORS)),
        nodes=_try(lambda: cluster.items("/api/v1/nodes")),
        space=_try(lambda: cluster.get(base)),
        policies=_try(lambda: cluster.items(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")),
        quotas=_try(lambda: cluster.items(f"{base}/resourcequotas")),
        classes=_try(lambda: cluster.items("/apis/storage.k8s.io/v1/storageclasses")),
        groups=_try(lambda: cluster.get("/apis")),
        admitted=_try(lambda: cluster.post(f"{base}/pods", SCRATCH_POD, dryRun="All")),
        rights={describe_right(right): _may(cluster, right) for right in RIGHTS},
    )


def _crd(cluster: Cluster, plural: str) -> Document | Unknown:
    name = f"{plural}.{API_VERSION.partition('/')[0]}"
    found: Document | Unknown = _try(
        lambda: cluster.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    )
    return found


def describe_right(right: tuple[str, str, str, str]) -> str:
    """Returns a right as `kubectl auth can-i` takes it."""
    verb, _, resource, subresource = right
    return f"{verb} {resource}/{subresource}" if subresource else f"{verb} {resource}"


def _may(cluster: Cluster, right: tuple[str, str, str, str]) -> bool | Unknown:
    verb, group, resource, subresource = right
    asked = {
        "namespace": cluster.namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = _try(lambda: cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body))
    return answer if isinstance(answer, Unknown) else bool(answer["status"]["allowed"])


def _try(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ClusterError as error:
        return Unknown(str(error), error.status)
