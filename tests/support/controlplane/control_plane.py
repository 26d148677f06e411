"""A whole control plane: controllers, a scheduler and kubelets that only pretend (kwok) on top of ApiServer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.controlplane.api import Manifest, eventually
from support.controlplane.api_server import ApiServer
from support.controlplane.process import ChildProcess

GPU = "nvidia.com/gpu"
_KWOK_STAGES = Path(__file__).with_name("kwok.yaml")


class ControlPlane(ApiServer):
    """ApiServer with kube-controller-manager, kube-scheduler and kwok: Deployments roll out, pods become Ready.

    kwok.yaml tells how pods behave, and by which annotation a test chooses something else than Ready.

    `crds` are applied before the controllers start, because the garbage collector looks for new kinds only every 30
    seconds (kube-controller-manager, garbagecollector.Sync). Until then it leaves the children of a deleted owner whose
    kind came later.
    """

    disabled_admission = ()

    def __init__(self, directory: Path, *, crds: Sequence[Path] = (), gpus: int = 64) -> None:
        super().__init__(directory, crds=crds)
        self._gpus = gpus
        self._controllers: list[ChildProcess] = []

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Returns the programs that it runs, as find_binaries names them."""
        return (*super().programs(), "kube-controller-manager", "kube-scheduler", "kwok")

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: list[Manifest] | None = None,
    ) -> None:
        """A node with `gpus` GPUs and plenty of the rest; returns when pods can be bound to it."""
        resources: dict[str, Any] = {"cpu": "4k", "memory": "64Ti", "pods": "100k", "ephemeral-storage": "64Ti"}
        resources |= {GPU: str(gpus)} if gpus else {}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        self.admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints or []}})
        status = {"status": {"capacity": resources, "allocatable": resources}}
        self.admin.patch("Node", name, status, subresource="status")
        eventually(lambda: self._node_ready(name, len(taints or [])), why=f"node {name} ready")

    def set_gpus(self, node: str, gpus: int) -> None:
        """Change what a node offers; pods that run stay."""
        resources = {"capacity": {GPU: str(gpus)}, "allocatable": {GPU: str(gpus)}}
        self.admin.patch("Node", node, {"status": resources}, subresource="status")

    def add_volume_claim(self, namespace: str, name: str) -> None:
        """A PersistentVolumeClaim that is bound: pods that mount it can be scheduled."""
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
        """Start the API server and wait until it is ready; controllers that lost it start anew.

        By themselves they would look for it again in growing pauses, each watch in its own: minutes in which the tests
        that follow would wait for pods in vain. What is under test is our operator, not how they come back.
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
            self._child("kwok", *self._kwok_flags(kubeconfig)),
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
            # A busy machine must not make kwok's nodes NotReady: they would stay so.
            "--node-monitor-grace-period=3600s",
            # Namespaces that tests leave behind go away in the background.
            "--concurrent-namespace-syncs=10",
        ]

    def _scheduler_config(self, kubeconfig: Path) -> Path:
        path = self.directory / "scheduler.yaml"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 300, "burst": 600},
            "leaderElection": {"leaderElect": False},
            # Pods that found no room are tried again soon: tests wait for that.
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
            # No leases: a kwok that starts anew would leave its nodes alone until the lease of the one before ran out,
            # and skip for good what it sees between its own renewal and the watch event that tells it of that.
            "--node-lease-duration-seconds=0",
            "--cidr=10.244.0.0/16",
            "--node-ip=10.0.0.1",
        ]

    def _node_ready(self, name: str, taints: int) -> bool:
        node = self.admin.get("Node", name)
        conditions = node.get("status", {}).get("conditions", [])
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready and len(node["spec"].get("taints", [])) <= taints
