"""A small synchronous client of the API server for tests: raw JSON, one method per verb, no caches."""

from __future__ import annotations

import json
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import urllib3
import yaml

from support.processes.polling import PATIENCE_S

Manifest = dict[str, Any]
T = TypeVar("T")

FIELD_MANAGER = "test"
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY = "application/apply-patch+yaml"
# Kind -> (group/version, plural, namespaced). `register` adds further kinds, such as those of CRDs.
_KINDS: dict[str, tuple[str, str, bool]] = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "PersistentVolume": ("v1", "persistentvolumes", False),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses", False),
    "RuntimeClass": ("node.k8s.io/v1", "runtimeclasses", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "Pod": ("v1", "pods", True),
    "Service": ("v1", "services", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims", True),
    "ResourceQuota": ("v1", "resourcequotas", True),
    "LimitRange": ("v1", "limitranges", True),
    "Event": ("v1", "events", True),
    "Endpoints": ("v1", "endpoints", True),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices", True),
    "Deployment": ("apps/v1", "deployments", True),
    "ReplicaSet": ("apps/v1", "replicasets", True),
    "ControllerRevision": ("apps/v1", "controllerrevisions", True),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "Lease": ("coordination.k8s.io/v1", "leases", True),
    "OmniPipeline": ("omnipipeline.io/v1alpha1", "omnipipelines", True),
    "OmniStage": ("omnipipeline.io/v1alpha1", "omnistages", True),
    "APIService": ("apiregistration.k8s.io/v1", "apiservices", False),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers", True),
    "GRPCRoute": ("gateway.networking.k8s.io/v1", "grpcroutes", True),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes", True),
    "BackendTLSPolicy": ("gateway.networking.k8s.io/v1", "backendtlspolicies", True),
    "Ingress": ("networking.k8s.io/v1", "ingresses", True),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors", True),
}


class ApiError(Exception):
    """The API server rejected a request. Has the HTTP `code`, and `reason` and `message` of the returned Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


def register(kind: str, api_version: str, plural: str, *, namespaced: bool = True) -> None:
    """Adds a kind that this module does not list, for all clients."""
    _KINDS[kind] = (api_version, plural, namespaced)


def path_of(kind: str, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
    """Returns the URL path of a collection, an object or a subresource."""
    api_version, plural, namespaced = _KINDS[kind]
    parts = ["api" if "/" not in api_version else "apis", api_version]
    if namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    parts += [part for part in (name, subresource) if part is not None]
    return "/" + "/".join(parts)


class Api:
    """Calls the API server as one user. Thread-safe.

    `namespace` is the default namespace for namespaced kinds.
    """

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.namespace = namespace
        self._kubeconfig = kubeconfig
        self._server, self._pool, self._headers = _connect(kubeconfig)

    def in_namespace(self, namespace: str) -> Api:
        """Returns a client with the same user and connections, and another default namespace."""
        other = object.__new__(Api)
        other.namespace, other._kubeconfig = namespace, self._kubeconfig
        other._server, other._pool, other._headers = self._server, self._pool, self._headers
        return other

    def get(self, kind: str, name: str, namespace: str | None = None) -> Manifest:
        """Returns the live object. Raises ApiError 404 if there is none."""
        return self.call("GET", self._path(kind, namespace, name))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Manifest | None:
        """Returns the live object, or None if there is none."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def list(self, kind: str, labels: str = "", namespace: str | None = None) -> list[Manifest]:
        """Returns the namespace's objects of a kind that the label selector `labels` matches.

        kind and apiVersion are filled in.
        """
        query = f"?labelSelector={urllib.parse.quote(labels)}" if labels else ""
        items = self.call("GET", self._path(kind, namespace) + query)["items"]
        return [{"apiVersion": _KINDS[kind][0], "kind": kind, **item} for item in items]

    def create(self, manifest: Manifest) -> Manifest:
        """Creates an object (POST). Returns it."""
        metadata = manifest["metadata"]
        path = self._path(manifest["kind"], metadata.get("namespace"))
        return self.call("POST", f"{path}?fieldManager={FIELD_MANAGER}", manifest)

    def apply(
        self,
        manifest: Manifest,
        *,
        manager: str = FIELD_MANAGER,
        force: bool = True,
        dry_run: bool = False,
        strict: bool = False,
    ) -> Manifest:
        """Applies an object on the server side. Returns it. `strict` rejects unknown fields, as kubectl does."""
        metadata = manifest["metadata"]
        query = {"fieldManager": manager, "force": str(force).lower()}
        query |= {"dryRun": "All"} if dry_run else {}
        query |= {"fieldValidation": "Strict"} if strict else {}
        path = self._path(manifest["kind"], metadata.get("namespace"), metadata["name"])
        return self.call("PATCH", f"{path}?{urllib.parse.urlencode(query)}", manifest, _APPLY)

    def patch(
        self, kind: str, name: str, change: Mapping[str, Any] | Sequence[Manifest], *, subresource: str | None = None
    ) -> Manifest:
        """Sends a merge patch if `change` is a mapping, a JSON patch if it is a sequence. Returns the object."""
        content = _MERGE_PATCH if isinstance(change, Mapping) else _JSON_PATCH
        path = path_of(kind, self.namespace, name, subresource)
        return self.call("PATCH", f"{path}?fieldManager={FIELD_MANAGER}", change, content)

    def replace(self, manifest: Manifest) -> Manifest:
        """Replaces an object (PUT). Returns it."""
        metadata = manifest["metadata"]
        return self.call("PUT", self._path(manifest["kind"], metadata.get("namespace"), metadata["name"]), manifest)

    def replace_spec(self, manifest: Manifest) -> Manifest:
        """Replaces a live object's whole spec with that of `manifest`. Returns the object."""
        change = [{"op": "replace", "path": "/spec", "value": manifest["spec"]}]
        return self.patch(manifest["kind"], manifest["metadata"]["name"], change)

    def delete(self, kind: str, name: str, *, propagation: str = "Background", grace_s: int | None = None) -> None:
        """Deletes an object (DELETE), if it exists."""
        options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        options |= {"gracePeriodSeconds": grace_s} if grace_s is not None else {}
        try:
            self.call("DELETE", self._path(kind, None, name), options)
        except ApiError as error:
            if error.code != 404:
                raise

    def watch(self, kind: str, timeout_s: int = 60, resource_version: str = "") -> Iterator[Manifest]:
        """Yields watch events {type, object} until the server ends the stream. Raises ApiError on rejection."""
        query = {"watch": "true", "timeoutSeconds": timeout_s, "resourceVersion": resource_version}
        url = f"{self._server}{self._path(kind, None)}?{urllib.parse.urlencode(query)}"
        response = self._pool.request("GET", url, headers=self._headers, preload_content=False, timeout=timeout_s + 5)
        try:
            if response.status >= 400:
                raise _error(response.status, response.read().decode())
            for line in response:
                yield json.loads(line)
        finally:
            response.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content: str = "application/json",
        timeout_s: float = PATIENCE_S,
        accept: str = "application/json",
    ) -> Manifest:
        """Sends one request. Returns the decoded response.

        Raises:
            ApiError: the response's status is 400 or above.
        """
        response = self._pool.request(
            method,
            self._server + path,
            body=None if body is None else json.dumps(body).encode(),
            headers={**self._headers, "Content-Type": content, "Accept": accept},
            timeout=timeout_s,
        )
        text = response.data.decode()
        if response.status >= 400:
            raise _error(response.status, text)
        decoded: Manifest = json.loads(text) if text.startswith(("{", "[")) else {"text": text}
        return decoded

    def _path(self, kind: str, namespace: str | None, name: str | None = None) -> str:
        return path_of(kind, namespace or self.namespace, name)


def eventually(
    probe: Callable[[], T], *, timeout_s: float = PATIENCE_S, every_s: float = 0.1, why: str = "", stays_s: float = 0.0
) -> T:
    """Calls `probe()` until its result is truthy and returns that result.

    AssertionError, ApiError and LookupError in `probe()` count as "not yet". With `stays_s`, the result must stay
    truthy for that many seconds.

    Raises:
        AssertionError: no truthy result within `timeout_s`. Its message has the last result or exception.
    """
    deadline = time.monotonic() + timeout_s
    since: float | None = None
    while True:
        last: object
        try:
            result = probe()
            last = result
        except (AssertionError, ApiError, LookupError) as error:
            result, last = None, error
        now = time.monotonic()
        if result:
            since = now if since is None else since
            if now - since >= stays_s:
                return result
        else:
            since = None
        if now > deadline and since is None:
            raise AssertionError(f"not within {timeout_s:.0f} s: {why or getattr(probe, '__name__', '')}; last: {last}")
        time.sleep(every_s)


def _connect(kubeconfig: Path) -> tuple[str, urllib3.PoolManager, dict[str, str]]:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return cluster["server"], urllib3.PoolManager(ssl_context=context, maxsize=32, retries=False), headers


def _error(code: int, text: str) -> ApiError:
    try:
        status = json.loads(text)
    except ValueError:
        return ApiError(code, "", text.strip())
    return ApiError(code, status.get("reason", ""), status.get("message", ""))
