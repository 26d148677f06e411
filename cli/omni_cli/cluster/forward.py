"""Ports of pods, and the entries of pipelines, on this machine: forwarded by the API server (`pods/portforward`)."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from omni_cli.cluster.access import Cluster, ClusterError, Document
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


_CHUNK_BYTES = 1 << 16
_MESSAGE = re.compile(r'"message":"((?:[^"\\]|\\.)*)"')
_dialling = threading.Lock()
"""kubernetes.stream replaces a method of its client while it connects, so one connection is made at a time."""


def dial(cluster: Cluster, namespace: str, pod: str, port: int) -> socket.socket:
    """Returns a connection to a pod's port. Raises ClusterError."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException
    from kubernetes.stream import portforward

    try:
        with _dialling:
            method = CoreV1Api(cluster.client).connect_get_namespaced_pod_portforward
            forwarded: Any = portforward(method, pod, namespace, ports=str(port))
    except ApiException as error:
        # The reason is the refused handshake as a text, with the API server's answer in it.
        said = _MESSAGE.search(str(error.reason))
        why = said[1] if said else " ".join(str(error.reason).split())
        raise ClusterError(f"cannot forward port {port} of pod {pod}: {why}") from error
    found: socket.socket = forwarded.socket(port)
    return found


def is_ready(pod: dict[str, Any]) -> bool:
    """Returns whether a pod is Ready and is not being deleted."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


@contextmanager
def listen(connect: Callable[[], socket.socket]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields HOST:PORT of a listener on this machine, and a function that returns why the last connection failed.

    Each connection to it is joined to one that `connect` makes; the text is empty if none failed.
    """
    server = socket.create_server(("127.0.0.1", 0))
    said = ""

    def accept() -> None:
        nonlocal said
        while True:
            try:
                local, _ = server.accept()
            except OSError:
                return  # closed
            try:
                remote = connect()
            except ClusterError as error:
                said = str(error)
                local.close()
                continue
            for source, target in ((local, remote), (remote, local)):
                threading.Thread(target=_pump, args=(source, target), daemon=True).start()

    threading.Thread(target=accept, name="forwarded port", daemon=True).start()
    host, port = server.getsockname()
    try:
        yield f"{host}:{port}", lambda: said
    finally:
        # close() alone would leave the thread, and so the port, in accept().
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    # A pump that ends, ends the other one too.
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
