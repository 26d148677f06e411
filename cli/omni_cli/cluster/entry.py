"""The entry of a pipeline in a cluster, as an endpoint on this machine."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omni_cli.cluster.access import Cluster, ClusterError, Document
from omni_cli.cluster.forward import dial, is_ready, listen
from omni_proto.client import ClientTls
from omni_proto.pod_contract import GRPC_PORT


@contextmanager
def forward_entry(cluster: Cluster, name: str, given: ClientTls | None) -> Iterator[tuple[str, ClientTls | None]]:
    """Yields the endpoint and TLS settings by which a client on this machine reaches a pipeline's entry stage.

    A new connection goes to a pod that is ready at that time. If the entry serves TLS, its certificate must be for the
    name of the entry's Service, and the CA is that of the entry's Secret, unless `given` has others. Raises
    ClusterError.
    """
    pipeline = cluster.pipeline(name)
    # A refusal is reported at once, and the client library is loaded before a caller's time limit runs.
    _dial(cluster, name).close()
    with ExitStack() as stack:
        scheme, tls = "", given
        if (pipeline.get("status") or {}).get("url", "").startswith("grpcs://"):
            scheme, tls = "grpcs://", stack.enter_context(_tls(cluster, pipeline, given))
        address, said = stack.enter_context(listen(lambda: _dial(cluster, name)))
        yield f"{scheme}{address}", tls
        if why := said():
            sys.stderr.write(f"the last connection to the pipeline failed: {why}\n")


def pick_pod(cluster: Cluster, pipeline: str) -> str:
    """Returns the name of a ready pod behind the pipeline's entry Service. Raises ClusterError."""
    try:
        service = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/services/{pipeline}")
    except ClusterError as error:
        if error.status != 404:
            raise
        raise ClusterError(
            f"pipeline {pipeline} has no Service yet; omnipipe status {pipeline} says why", 404
        ) from error
    ready = [pod["metadata"]["name"] for pod in cluster.pods(service["spec"]["selector"]) if is_ready(pod)]
    if not ready:
        raise ClusterError(f"pipeline {pipeline} has no ready entry pod; omnipipe status {pipeline} says why")
    return str(min(ready))


def _dial(cluster: Cluster, pipeline: str) -> socket.socket:
    return dial(cluster, cluster.namespace, pick_pod(cluster, pipeline), GRPC_PORT)


@contextmanager
def _tls(cluster: Cluster, pipeline: Document, given: ClientTls | None) -> Iterator[ClientTls]:
    name = f"{pipeline['metadata']['name']}.{cluster.namespace}.svc"
    tls = given or ClientTls()
    tls = dataclasses.replace(tls, server_name=tls.server_name or name)
    secret = ((pipeline["spec"].get("entry") or {}).get("tls") or {}).get("secretName")
    if tls.ca is not None or not secret:
        yield tls
        return
    with tempfile.TemporaryDirectory(prefix="omnipipe-") as folder:
        ca = _read_ca(cluster, secret)
        if ca is not None:
            file = Path(folder) / "ca.crt"
            file.write_bytes(ca)
            tls = dataclasses.replace(tls, ca=file)
        yield tls


def _read_ca(cluster: Cluster, secret: str) -> bytes | None:
    """Returns the CA of an entry's Secret; None if it has none, because a public CA signed the certificate."""
    try:
        data = cluster.get(f"/api/v1/namespaces/{cluster.namespace}/secrets/{secret}").get("data") or {}
        return base64.b64decode(data["ca.crt"]) if "ca.crt" in data else None
    except ClusterError as error:
        raise ClusterError(f"cannot read the CA in Secret {secret}: {error}; give it by --ca", error.status) from error
    except binascii.Error as error:
        raise ClusterError(f"ca.crt of Secret {secret} is not base64; give the CA by --ca") from error
