"""Ports of pods on this machine, forwarded by the API server (`pods/portforward`), as `kubectl port-forward` does."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omni_cli.cluster.access import Cluster, ClusterError

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
