"""A real KEDA: its operator and its metrics server as processes, behind a test's API server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Self

import yaml

from omni_cli.local.ports import pick_ports
from support.controlplane.binaries import find_binaries
from support.controlplane.control_plane import ControlPlane
from support.controlplane.go_build import SOURCE
from support.controlplane.server.api import ApiError, eventually, register
from support.processes.polling import PATIENCE_S
from support.processes.process import ChildProcess

PROGRAMS = ("keda", "keda-adapter")
_GROUP, _VERSION = "external.metrics.k8s.io", "v1beta1"


class Keda:
    """KEDA for all namespaces, with an administrator's rights. A context manager.

    Without its webhooks and without a rotation of certificates: both programs show the API server's certificate.
    """

    def __init__(self, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        """namespace: where KEDA's own objects are. folder: for logs and certificates."""
        self._control_plane, self._namespace = control_plane, namespace
        binaries = find_binaries(*PROGRAMS, build=False)
        self._crds = sorted((binaries["keda"].parent / SOURCE / "config" / "crd" / "bases").glob("*.yaml"))
        self._certificates = folder / "keda-certificates"
        grpc, self._secure, metrics = pick_ports(3)
        config = control_plane.kubeconfig
        # Outside a pod, KEDA must be told its namespace twice: for its objects, and for its secrets.
        namespaces = {"WATCH_NAMESPACE": "", "POD_NAMESPACE": namespace, "KEDA_CLUSTER_OBJECT_NAMESPACE": namespace}
        environment = {**os.environ, "KUBECONFIG": str(config), **namespaces}
        operator = ["--metrics-bind-address=0", "--health-probe-bind-address=0", f"--cert-dir={self._certificates}"]
        operator += [f"--metrics-service-bind-address=127.0.0.1:{grpc}"]
        adapter = [f"--metrics-service-address=localhost:{grpc}", f"--port={metrics}", f"--secure-port={self._secure}"]
        adapter += ["--bind-address=127.0.0.1", f"--cert-dir={self._certificates}"]
        adapter += [f"--tls-cert-file={self._certificates / 'tls.crt'}"]
        adapter += [f"--tls-private-key-file={self._certificates / 'tls.key'}"]
        adapter += [f"--{use}-kubeconfig={config}" for use in ("authentication", "authorization", "lister")]
        self._processes = [
            ChildProcess(name, [binaries[name], *flags], folder / f"{name}.log", environment)
            for name, flags in zip(PROGRAMS, (operator, adapter), strict=True)
        ]

    def __enter__(self) -> Self:
        for file in self._crds:
            names = yaml.safe_load(file.read_text())["spec"]["names"]
            if names["kind"] == "ScaledObject":
                register("ScaledObject", "keda.sh/v1alpha1", names["plural"])
        self._control_plane.apply_crds(*self._crds)
        pki = self._control_plane.pki
        self._certificates.mkdir()
        for source, name in ((pki.ca, "ca.crt"), (pki.server_certificate, "tls.crt"), (pki.server_key, "tls.key")):
            shutil.copy(source, self._certificates / name)
        for process in self._processes:
            process.start()
        self._control_plane.publish_api(f"{_VERSION}.{_GROUP}", self._namespace, self._secure)
        eventually(self._serves, timeout_s=PATIENCE_S, why="the API server reaches KEDA's metrics server")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self._control_plane.admin.delete("APIService", f"{_VERSION}.{_GROUP}")

    def require_running(self) -> None:
        """Raises RuntimeError with the end of its log if one of the programs has ended."""
        for process in self._processes:
            if not process.running:
                raise RuntimeError(f"{process.name} ended with {process.returncode}:\n{process.log_tail()}")

    def _serves(self) -> bool:
        self.require_running()
        try:
            self._control_plane.admin.call("GET", f"/apis/{_GROUP}/{_VERSION}")
        except ApiError:
            return False
        return True
