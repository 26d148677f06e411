"""A whole control plane: ApiServer with controllers, a scheduler and simulated kubelets (kwok)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.controlplane.server.api import Manifest, eventually
from support.controlplane.server.api_server import ApiServer
from support.processes.process import ENDS_WITH_PARENT, ChildProcess

GPU = "nvidia.com/gpu"
_RESTARTS = (
    "sh",
    "-c",
    f'for i in 1 2 3 4 5; do {" ".join(ENDS_WITH_PARENT)} "$0" "$@" && exit; sleep 0.2; done; exit 2',
)
"""Prefix of a command that is started again when it fails, as in a cluster. kwok 0.7 sometimes crashes while it starts:
its controllers of nodes and of pods write to one map at the same time (pkg/utils/lifecycle, Stage.init)."""
_KWOK_STAGES = Path(__file__).with_name("kwok.yaml")


class ControlPlane(ApiServer):
    """ApiServer with kube-controller-manager, kube-scheduler and kwok: Deployments roll out and pods become Ready.

    kwok.yaml defines how pods behave, and the annotation with which a test chooses another behaviour.

    `crds` are applied before the controllers start, because the garbage collector discovers new kinds only every 30
    seconds (kube-controller-manager, garbagecollector.Sync). Until then it does not delete the children of a deleted
    owner of a new kind.
    """

    disabled_admission = ()

    def __init__(self, directory: Path, *, crds: Sequence[Path] = (), gpus: int = 64) -> None:
        super().__init__(directory, crds=crds)
        self._gpus = gpus
        self._controllers: list[ChildProcess] = []

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Returns the names of the programs that this class runs, as find_binaries knows them."""
        return (*super().programs(), "kube-controller-manager", "kube-scheduler", "kwok")

    def add_node(
        self, name: str, *, gpus: int = 0, labels: Mapping[str, str] | None = None, taints: list[Manifest] | None = None
    ) -> None:
        """Adds a node with `gpus` GPUs and ample other resources, and waits until pods can be bound to the node."""
        resources: dict[str, Any] = {"cpu": "4k", "memory": "64Ti", "pods": "100k", "ephemeral-storage": "64Ti"}
        resources |= {GPU: str(gpus)} if gpus else {}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        self.admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints or []}})
        status = {"status": {"capacity": resources, "allocatable": resources}}
        self.admin.patch("Node", name, status, subresource="status")
        eventually(lambda: self._node_ready(name, len(taints or [])), why=f"node {name} ready")

    def set_gpus(self, node: str, gpus: int) -> None:
        """Changes how many GPUs a node offers. Running pods stay."""
        resources = {"capacity": {GPU: str(gpus)}, "allocatable": {GPU: str(gpus)}}
        self.admin.patch("Node", node, {"status": resources}, subresource="status")

    def add_volume_claim(self, namespace: str, name: str) -> None:
        """Adds a bound PersistentVolumeClaim, so that pods which mount the claim can be scheduled."""
        volume, access = f"{namespace}-{name}", {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
        }
        requests = {"requests": {"storage": "1Gi"}}
        claim |= {"spec": {**access, "volumeName": volume, "resources": requests}}
        reference = {"apiVersion": "v1", "kind": claim["kind"], "name": name, "namespace": namespace}
        spec = {**access, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/models"}, "claimRef": reference}
        self.admin.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec})
        self.admin.in_namespace(namespace).apply(claim)
        bound = self.admin.in_namespace(namespace)
        eventually(lambda: bound.get("PersistentVolumeClaim", name)["status"].get("phase") == "Bound", why="bound")

    def start(self) -> None:
        """Starts the API server, waits until it is ready, and restarts the controllers.

        By themselves the controllers would reconnect each watch with growing pauses. For minutes, tests would get no
        pods. Only the operator's own reconnecting is under test.
        """
        super().start()
        for controller in self._controllers:
            controller.kill()
            controller.start()

    def _start_all(self) -> None:
        super()._start_all()
        kubeconfig = self.kubeconfig
        self._controllers += (
            self._child("kube-controller-manager", *self._controller_manager_flags(kubeconfig)),
            self._child("kube-scheduler", f"--config={self._scheduler_config(kubeconfig)}", "--secure-port=0"),
            self._child("kwok", *self._kwok_flags(kubeconfig), prefix=_RESTARTS),
        )
        for controller in self._controllers:
            controller.start()
        self.add_node("node-1", gpus=self._gpus)
        eventually(lambda: self.admin.find("ServiceAccount", "default"), why="the controllers run")

    def _controller_manager_flags(self, kubeconfig: Path) -> list[str]:
        return [
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self.pki.service_account_key}",
            f"--root-ca-file={self.pki.ca}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
            # The default of 20 requests a second would make the controllers the slowest part of every test.
            "--kube-api-qps=300",
            "--kube-api-burst=600",
            # On a busy machine kwok's nodes must not become NotReady, because they would stay NotReady.
            "--node-monitor-grace-period=3600s",
            # Tests' namespaces are deleted in the background.
            "--concurrent-namespace-syncs=10",
        ]

    def _scheduler_config(self, kubeconfig: Path) -> Path:
        path = self.directory / "scheduler.yaml"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 300, "burst": 600},
            "leaderElection": {"leaderElect": False},
            # Unschedulable pods are retried soon, because tests wait for them.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def _kwok_flags(self, kubeconfig: Path) -> list[str]:
        return [
            f"--kubeconfig={kubeconfig}",
            f"--config={_KWOK_STAGES}",
            "--manage-all-nodes=true",
            # No leases. A restarted kwok would ignore its nodes until its predecessor's lease expired. It would also
            # never handle the pods seen between its own lease renewal and the watch event of that renewal.
            "--node-lease-duration-seconds=0",
            "--cidr=10.244.0.0/16",
            "--node-ip=10.0.0.1",
        ]

    def _node_ready(self, name: str, taints: int) -> bool:
        node = self.admin.get("Node", name)
        conditions = node.get("status", {}).get("conditions", [])
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready and len(node["spec"].get("taints", [])) <= taints
