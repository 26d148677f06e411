"""The API server as the user of a kubeconfig sees it: objects as plain JSON, and errors in the user's words."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import yaml

from omni_proto.pipeline import API_VERSION, KIND

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Document = dict[str, Any]
PIPELINES: Final = f"/apis/{API_VERSION}/namespaces/{{namespace}}/omnipipelines"
TIMEOUT_S: Final = 10.0
PAGE: Final = 200
"""Objects in a page of a list."""
_CHUNK_BYTES: Final = 1 << 16
_NO_CRD: Final = "the cluster has no OmniPipeline CRD; omnipipe doctor says how to install it"
_REMEDY: Final = "give a file by --kubeconfig or KUBECONFIG"
_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ClusterError(Exception):
    """The cluster cannot be reached, or refuses; the message says why. `status` is the HTTP status, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Cluster:
    """One API server, and the namespace that commands read if they are given none."""

    client: ApiClient
    namespace: str

    def get(self, path: str, **query: str) -> Document:
        """Returns a JSON document, such as an object or one page of a list. Raises ClusterError."""
        return self._document("GET", path, query)

    def post(self, path: str, body: Document, **query: str) -> Document:
        """Returns the answer to a document that is sent. Raises ClusterError."""
        return self._document("POST", path, query, body)

    def items(self, path: str, **query: str) -> list[Document]:
        """Returns all objects of a list. Raises ClusterError."""
        page = self.get(path, limit=str(PAGE), **query)
        found = list(page.get("items") or ())
        while rest := (page.get("metadata") or {}).get("continue"):
            page = self.get(path, limit=str(PAGE), **{**query, "continue": rest})
            found += page.get("items") or ()
        return found

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """Yields the lines of a text of any length, such as a log, without holding all of it. Raises ClusterError."""
        rest = b""
        with self._reaching():
            for chunk in self._call("GET", path, query).stream(_CHUNK_BYTES):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    def pipeline(self, name: str) -> Document:
        """Returns an OmniPipeline of the namespace. Raises ClusterError."""
        try:
            return self.get(f"{PIPELINES.format(namespace=self.namespace)}/{quote(name, safe='')}")
        except ClusterError as error:
            if error.status != 404:
                raise
            absent = f"no pipeline {name!r} in namespace {self.namespace!r}; omnipipe list -A lists all of them"
            # The API server says the name of an object that does not exist, and no name where the kind does not exist.
            raise ClusterError(absent if name in str(error) else _NO_CRD, 404) from error

    def pipelines(self, *, everywhere: bool = False) -> list[Document]:
        """Returns the OmniPipelines of the namespace, or of all. Raises ClusterError."""
        path = PIPELINES.format(namespace=self.namespace)
        try:
            found = self.items(path.replace(f"/namespaces/{self.namespace}", "") if everywhere else path)
        except ClusterError as error:
            if error.status != 404:
                raise
            raise ClusterError(_NO_CRD, 404) from error
        return [{"apiVersion": API_VERSION, "kind": KIND, **one} for one in found]

    def pods(self, selector: Mapping[str, str], namespace: str | None = None) -> list[Document]:
        """Returns the pods with these labels. Raises ClusterError."""
        labels = ",".join(f"{key}={value}" if value else key for key, value in selector.items())
        return self.items(f"/api/v1/namespaces/{namespace or self.namespace}/pods", labelSelector=labels)

    def _document(self, method: str, path: str, query: Mapping[str, str], body: Document | None = None) -> Document:
        with self._reaching():
            content = self._call(method, path, query, body).read()
        try:
            found: Document = json.loads(content)
        except ValueError as error:
            raise ClusterError(f"{self._server} answers no JSON, so it is no API server; {_REMEDY}") from error
        return found

    @property
    def _server(self) -> str:
        return f"the API server {self.client.configuration.host}"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        from urllib3.exceptions import HTTPError

        try:
            yield
        except HTTPError as error:
            raise ClusterError(f"{self._server} does not answer: {_root_cause(error)}") from error

    def _call(self, method: str, path: str, query: Mapping[str, str], body: Document | None = None) -> Any:
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": "application/json, */*"} | ({"Content-Type": "application/json"} if body else {})
        request = self.client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self.client.call_api(*request, _request_timeout=TIMEOUT_S).response
        except ApiException as error:
            raise ClusterError(f"the API server answers {error.status} ({error.reason})", error.status or 0) from error
        if response.status >= 300:
            raise ClusterError(_explain(response.status, response.reason, response.read()), response.status)
        return response


def _explain(status: int, reason: str | None, content: bytes) -> str:
    """Returns what the API server said: the message of its Status, else the HTTP status."""
    try:
        message = json.loads(content).get("message")
    except (ValueError, AttributeError):
        message = None
    return f"the API server answers {status} ({reason})" + (f": {message}" if message else "")


def _root_cause(error: BaseException) -> str:
    """Returns what the system or TLS said below the errors of urllib3, such as `Connection refused`."""
    inner = getattr(error, "reason", None), error.__cause__, *error.args
    below = next((one for one in inner if isinstance(one, BaseException)), None)
    if below is not None:
        return _root_cause(below)
    return getattr(error, "verify_message", "") or getattr(error, "strerror", None) or str(error)


def connect(kubeconfig: Path | None, namespace: str | None, context: str | None = None) -> Cluster:
    """Returns the cluster of a kubeconfig's context. Default: its current one.

    If kubeconfig is None, the default kubeconfig is used or, in a pod without one, the pod's own credentials. If
    namespace is None, the namespace of the context or the pod is used, else `default`. Raises ClusterError.
    """
    from kubernetes import client, config
    from kubernetes.config.config_exception import ConfigException

    settings, heard = client.Configuration(), _Heard()
    # The client reports a credential plugin that fails only as a log record, and then asks without credentials.
    logging.getLogger().addHandler(heard)
    try:
        own = _load(config, settings, str(kubeconfig) if kubeconfig else None, context)
    except (ConfigException, OSError) as error:
        raise ClusterError(f"cannot find a cluster: {str(error).rstrip('.')}; {_REMEDY}") from error
    except (AttributeError, TypeError, ValueError, yaml.YAMLError) as error:
        # The client reads the fields of the file without checking their types.
        words = " ".join(str(error).split())
        raise ClusterError(f"cannot find a cluster: the kubeconfig is damaged: {words}; {_REMEDY}") from error
    finally:
        logging.getLogger().removeHandler(heard)
    if heard.errors:
        words = " ".join("; ".join(heard.errors).split())
        raise ClusterError(f"the kubeconfig's credential plugin fails: {words}; kubectl get nodes needs it too")
    return Cluster(client.ApiClient(settings), namespace or own)


def _load(config: Any, settings: Any, file: str | None, context: str | None) -> str:
    """Reads credentials into the settings, and returns their namespace."""
    known = [Path(one).expanduser() for one in config.KUBE_CONFIG_DEFAULT_LOCATION.split(os.pathsep)]
    if file is None and "KUBERNETES_SERVICE_HOST" in os.environ and not any(one.exists() for one in known):
        config.load_incluster_config(client_configuration=settings)
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip()
    config.load_kube_config(config_file=file, context=context, client_configuration=settings)
    contexts, chosen = config.list_kube_config_contexts(config_file=file)
    if context is not None:
        chosen = next(one for one in contexts if one["name"] == context)
    return str(chosen["context"].get("namespace") or "default")


@dataclass(eq=False)
class _Heard(logging.Handler):
    """Keeps the errors that are logged, off the terminal."""

    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())
