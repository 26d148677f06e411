"""The kinds of object that the operator reads and writes."""

from __future__ import annotations

from typing import Final, NamedTuple

from omni_kube.objects import Manifest, ObjectKind
from omni_proto.pipeline import API_VERSION
from omni_proto.pipeline.types.scaling import STAGE_KIND

FIELD_MANAGER: Final = "omnipipeline-operator"
"""The operator's field manager (server-side apply), and the value of app.kubernetes.io/managed-by."""

PIPELINE_KIND: Final = "OmniPipeline"
PIPELINES: Final = ObjectKind(PIPELINE_KIND, API_VERSION, "omnipipelines")

# Optional: an operator that is newer than the CRDs must heal what runs.
STAGES: Final = ObjectKind(STAGE_KIND, API_VERSION, "omnistages", optional=True)
POD_MONITORS: Final = ObjectKind("PodMonitor", "monitoring.coreos.com/v1", "podmonitors", optional=True)
BACKEND_TLS: Final = ObjectKind("BackendTLSPolicy", "gateway.networking.k8s.io/v1", "backendtlspolicies", optional=True)
GRPC_ROUTES: Final = ObjectKind("GRPCRoute", "gateway.networking.k8s.io/v1", "grpcroutes", optional=True)
HTTP_ROUTES: Final = ObjectKind("HTTPRoute", "gateway.networking.k8s.io/v1", "httproutes", optional=True)
# Optional: an operator that is newer than its Role must heal what runs.
INGRESSES: Final = ObjectKind("Ingress", "networking.k8s.io/v1", "ingresses", optional=True)
ROUTE_KINDS: Final = {kind.kind: kind for kind in (BACKEND_TLS, GRPC_ROUTES, HTTP_ROUTES, INGRESSES)}
"""The kinds of object that lead clients from outside the cluster to a pipeline, by name. The policy is first, so that
no Gateway speaks plaintext to a pipeline with TLS."""

CHILD_KINDS: Final = (
    ObjectKind("ServiceAccount", "v1", "serviceaccounts"),
    ObjectKind("ConfigMap", "v1", "configmaps", metadata_only=True),
    ObjectKind("ControllerRevision", "apps/v1", "controllerrevisions"),
    ObjectKind("Service", "v1", "services"),
    ObjectKind("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    ObjectKind("Deployment", "apps/v1", "deployments"),
    ObjectKind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    STAGES,
    POD_MONITORS,
    *ROUTE_KINDS.values(),
)
"""Every kind of child. Each follows the kinds that it depends on."""
KIND_BY_NAME: Final = {kind.kind: kind for kind in CHILD_KINDS}

PODS: Final = ObjectKind("Pod", "v1", "pods")
REPLICA_SETS: Final = ObjectKind("ReplicaSet", "apps/v1", "replicasets")
ENDPOINT_SLICES: Final = ObjectKind("EndpointSlice", "discovery.k8s.io/v1", "endpointslices")
SLICE_SERVICE_LABEL: Final = "kubernetes.io/service-name"
SLICE_MANAGER_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
"""The client that writes an EndpointSlice. Kubernetes' own controller leaves those of others alone."""
WATCHED_KINDS: Final = (*CHILD_KINDS, PODS, REPLICA_SETS, ENDPOINT_SLICES)
"""Kinds that reflectors keep in the store, in addition to OmniPipelines."""
EVENTS: Final = ObjectKind("Event", "v1", "events")


class ChildKey(NamedTuple):
    """An object in the pipeline's namespace."""

    kind: str
    name: str


def key_of(manifest: Manifest) -> ChildKey:
    """Returns kind and name of an object. Its kind must be set, although the API omits it in items of lists."""
    return ChildKey(manifest["kind"], manifest["metadata"]["name"])
