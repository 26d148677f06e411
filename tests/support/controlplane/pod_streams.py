"""The kubelet's part of `kubectl logs` and `kubectl port-forward`, played by a second kwok.

The API server asks the node of a pod for its log and its ports. kwok serves both by the kubelet's own libraries: a log
from a file in the container runtime's format, a port from an address on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from omni_cli.local.ports import is_free, pick_ports
from support.controlplane.control_plane import ControlPlane
from support.controlplane.server.api import Manifest
from support.processes.polling import wait_until
from support.processes.process import ChildProcess


@dataclass(frozen=True)
class PodStream:
    """What a pod's container shows."""

    pod: Manifest
    ports: Mapping[int, int]
    """For each port of the pod, the port on this machine that answers."""
    log: Path
    """A file in the container runtime's format; see write_container_log."""


@contextmanager
def serve_pods(control_plane: ControlPlane, streams: list[PodStream], folder: Path) -> Iterator[None]:
    """Serves logs and ports of pods on node-1 until the block ends."""
    documents = [document for stream in streams for document in _rules(stream)]
    (folder / "kubelet.yaml").write_text(yaml.safe_dump_all(documents))
    (port,) = pick_ports(1)
    pki = control_plane.pki
    flags = [
        f"--kubeconfig={control_plane.kubeconfig}",
        f"--config={folder / 'kubelet.yaml'}",
        "--manage-single-node=none-of-them",
        "--node-lease-duration-seconds=0",
        f"--server-address=127.0.0.1:{port}",
        f"--tls-cert-file={pki.server_certificate}",
        f"--tls-private-key-file={pki.server_key}",
    ]
    kubelet = ChildProcess("kubelet", [control_plane.binaries["kwok"], *flags], folder / "kubelet.log")
    kubelet.start()
    try:
        wait_until(lambda: not is_free(port), why=kubelet.log_tail)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        control_plane.admin.patch("Node", "node-1", {"status": status}, subresource="status")
        yield
    finally:
        kubelet.kill()


def write_container_log(lines: str, path: Path) -> None:
    """Writes the lines of a program as containerd stores them: each with its time, stream and a flag."""
    time = "1970-01-01T00:00:00.000000000Z"
    entries: list[str] = []
    for line in lines.splitlines():
        if match := re.search(r"\d{4}-\d\d-\d\dT[\d:.]+", line):
            time = f"{match[0]}000000Z"
        entries.append(f"{time} stderr F {line}\n")
    path.write_text("".join(entries))


def _rules(stream: PodStream) -> Iterator[dict[str, Any]]:
    metadata = {"name": stream.pod["metadata"]["name"], "namespace": stream.pod["metadata"]["namespace"]}
    head = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "metadata": metadata}
    forwards = [
        {"ports": [port], "target": {"address": "127.0.0.1", "port": here}} for port, here in stream.ports.items()
    ]
    yield {**head, "kind": "PortForward", "spec": {"forwards": forwards}}
    yield {**head, "kind": "Logs", "spec": {"logs": [{"logsFile": str(stream.log)}]}}
