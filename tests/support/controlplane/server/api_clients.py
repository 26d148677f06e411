"""The product's API client for tests, and objects for it to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import Transport, load_connection
from omni_kube.objects import Manifest
from omni_operator.kinds import FIELD_MANAGER, KIND_BY_NAME
from omni_operator.process.metrics import Metrics
from omni_proto.pod_contract import PIPELINE_LABEL
from support.controlplane.server.api import Api

CONFIG_MAP = KIND_BY_NAME["ConfigMap"]


def config_map(api: Api, name: str = "x", pipeline: str = "p", **data: str) -> Manifest:
    metadata = {"name": name, "namespace": api.namespace, "labels": {PIPELINE_LABEL: pipeline}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"a": "b"}}


async def make_client(kubeconfig: Path, may_write: Callable[[], float] = lambda: 15.0) -> ApiClient:
    transport = Transport(await load_connection(kubeconfig, FIELD_MANAGER), Metrics())
    return ApiClient(transport, RateLimiter(1000, 1000), may_write)


def grant(space: Api) -> None:
    space.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "robot"},
            "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": space.namespace}],
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )
