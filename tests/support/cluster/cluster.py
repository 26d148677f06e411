"""A real Kubernetes node on this machine: control plane, kubelet, containerd, kube-proxy and CoreDNS. Needs root.

with Cluster() as cluster:
    cluster.images.build()
    cluster.kubectl("apply", "-f", ...)

Everything runs in one network namespace and one cgroup, with its files in one folder; `down` removes all three. Daemons
outlive the process that starts them. If a node is already up, Cluster uses that node and leaves it up.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

from support.cluster.node import cgroups, network, system
from support.cluster.node.containerd import Containerd
from support.cluster.node.daemon import Daemon
from support.cluster.node.images import Images
from support.cluster.node.kubelet import build_coredns, build_kube_proxy, build_kubelet
from support.cluster.node.layout import NODE, POD_NETWORK, SERVICE_NETWORK, Layout
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.pki import Pki
from support.processes.polling import PATIENCE_S

_GPU = "nvidia.com~1gpu"
# In the order in which `down` stops them: clients before the servers that they call.
_DAEMONS = (
    "kubelet",
    "kube-proxy",
    "coredns",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
    "buildkitd",
)


class Cluster(ApiServer):
    """One node. API clients, kubectl and CRDs come from ApiServer."""

    disabled_admission = ()

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()
        system.prepare()
        super().__init__(self.layout.run)
        self.containerd = Containerd(self.layout)
        self.images = Images(self.layout, self.containerd)
        self.node_address = ""
        self.host_address = ""
        self._taken = False

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        controllers = ("kube-controller-manager", "kube-scheduler", "helm")
        return (*super().programs(), *controllers, "kubelet", "kube-proxy", "coredns")

    @property
    def kubeconfig(self) -> Path:
        """Returns the path of the administrator's kubeconfig (system:masters)."""
        return self.layout.kubeconfig

    def __exit__(self, *_: object) -> None:
        if not self._taken:
            self.close()

    def close(self) -> None:
        """Stops the node and removes everything except the image cache."""
        down(self.layout)

    def daemon(self, name: str) -> Daemon:
        """Returns a daemon of the node, so that tests can inject faults (`kill`, `stop`, `start`)."""
        return self._daemons[name]

    def set_gpus(self, gpus: int) -> None:
        """Sets how many nvidia.com/gpu the node advertises, and waits until they are allocatable."""
        change = [{"op": "add", "path": f"/status/{field}/{_GPU}", "value": str(gpus)} for field in ("capacity",)]
        self.admin.patch("Node", NODE, change, subresource="status")
        eventually(
            lambda: self.admin.get("Node", NODE)["status"]["allocatable"].get("nvidia.com/gpu") == str(gpus),
            why=f"{gpus} GPUs advertised",
            timeout_s=PATIENCE_S,
        )

    def collect_logs(self, folder: Path) -> None:
        """Writes logs of daemons and pods, objects and events to `folder`, to diagnose a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.layout.logs, folder / "daemons", dirs_exist_ok=True)
        if (self.layout.run / "pod-logs").is_dir():
            shutil.copytree(self.layout.run / "pod-logs", folder / "pods", dirs_exist_ok=True, symlinks=True)
        for name, arguments in {
            "objects.txt": ("get", "all,configmaps,pvc,pv,nodes", "--all-namespaces", "--output=wide"),
            "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"),
            "pods.txt": ("describe", "pods", "--all-namespaces"),
            "pipelines.yaml": ("get", "omnipipelines", "--all-namespaces", "--output=yaml"),
        }.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                result = self.kubectl(*arguments, check=False)
                (folder / name).write_text(result.stdout + result.stderr)

    # Start-up

    def _start_all(self) -> None:
        if self.layout.kubeconfig.exists():
            self._take()
            return
        down(self.layout)
        self.layout.logs.mkdir(parents=True)
        cgroups.create()
        network.create(self.layout)
        self.containerd.start()
        self.images.load_pause()
        self.host_address, self.node_address = network.addresses(self.layout)
        self.url = f"https://{self.node_address}:6443"
        self.pki = Pki(self.layout.run / "pki", names=(NODE,), addresses=(self.node_address,))
        admin = super().kubeconfig_for("admin", groups=("system:masters",))
        self._prepare_daemons(admin)
        self._daemons["etcd"].start()
        self._admin = Api(admin)
        self._daemons["kube-apiserver"].start()
        self._daemons["kube-apiserver"].wait_until(self._ready)
        for name in ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns"):
            self._daemons[name].start()
        self._daemons["kubelet"].wait_until(self._node_ready)
        eventually(lambda: self.admin.find("ServiceAccount", "default"), why="the controllers run")
        # Written last: a process that finds this file finds a node that is up.
        self.layout.kubeconfig.write_text(admin.read_text())
        self.layout.kubeconfig.chmod(0o600)

    def _take(self) -> None:
        """Uses the node that is already up. Raises RuntimeError if its API server does not answer."""
        self._taken = True
        self.host_address, self.node_address = network.addresses(self.layout)
        self.url = f"https://{self.node_address}:6443"
        self._admin = Api(self.layout.kubeconfig)
        if not self._ready():
            raise RuntimeError(f"a node is left in {self.layout.run} but does not answer: run `make cluster-down`")
        self._daemons = {name: Daemon(self.layout, name) for name in _DAEMONS}

    def _prepare_daemons(self, admin: Path) -> None:
        layout, programs = self.layout, self.binaries
        kubelet = self.kubeconfig_for(f"system:node:{NODE}", groups=("system:nodes",))
        self._daemons = {
            "etcd": Daemon(layout, "etcd", [programs["etcd"], *self._etcd_flags(2379, 2380)]),
            "kube-apiserver": Daemon(
                layout,
                "kube-apiserver",
                [programs["kube-apiserver"], *self._api_server_flags("http://127.0.0.1:2379", 6443)],
            ),
            "kube-controller-manager": Daemon(
                layout,
                "kube-controller-manager",
                [programs["kube-controller-manager"], *self._controller_manager_flags(admin)],
            ),
            "kube-scheduler": Daemon(
                layout,
                "kube-scheduler",
                [programs["kube-scheduler"], f"--kubeconfig={admin}", "--leader-elect=false", "--secure-port=0"],
            ),
            "kubelet": build_kubelet(
                layout,
                programs["kubelet"],
                kubelet,
                self.node_address,
                ca=self.pki.ca,
                certificate=self.pki.server_certificate,
                key=self.pki.server_key,
            ),
            "kube-proxy": build_kube_proxy(layout, programs["kube-proxy"], admin),
            "coredns": build_coredns(layout, programs["coredns"], admin, self.node_address),
        }

    def _api_server_flags(self, etcd: str, port: int) -> list[str]:
        certificate, key = self._kubelet_client()
        flags = [flag for flag in super()._api_server_flags(etcd, port) if not flag.startswith("--authorization-mode")]
        # A later flag overrides an earlier one.
        return [
            *flags,
            "--authorization-mode=Node,RBAC",
            "--bind-address=0.0.0.0",
            f"--advertise-address={self.node_address}",
            "--endpoint-reconciler-type=lease",
            # With the default types, exec and logs would resolve the node's name.
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={self.pki.ca}",
            f"--kubelet-client-certificate={certificate}",
            f"--kubelet-client-key={key}",
        ]

    def _kubelet_client(self) -> tuple[Path, Path]:
        certificate, key = self.pki.client_pair("kube-apiserver-kubelet-client", ("system:masters",))
        files = self.pki.directory / "kubelet-client.crt", self.pki.directory / "kubelet-client.key"
        for path, content in zip(files, (certificate, key), strict=True):
            path.write_bytes(content)
            path.chmod(0o600)
        return files

    def _controller_manager_flags(self, kubeconfig: Path) -> list[str]:
        return [
            f"--kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self.pki.service_account_key}",
            f"--root-ca-file={self.pki.ca}",
            "--leader-elect=false",
            "--secure-port=0",
            "--use-service-account-credentials",
            "--allocate-node-cidrs",
            f"--cluster-cidr={POD_NETWORK}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
        ]

    def _node_ready(self) -> bool:
        node = self.admin.find("Node", NODE)
        conditions = node["status"].get("conditions", []) if node else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def down(layout: Layout) -> None:
    """Stops a node, no matter which process started it, and removes everything except the image cache.

    It removes daemons, pods, mounts, links, the network namespace, the cgroup and the folder.
    """
    for name in _DAEMONS:
        Daemon(layout, name).stop(timeout_s=3)
    cgroups.end_pods()
    containerd = Containerd(layout)
    if containerd.daemon.running:
        containerd.remove_containers()
        containerd.daemon.stop()
    cgroups.end_daemons()
    _unmount_below(layout.run)
    network.remove()
    cgroups.remove()
    if layout.run.exists():
        shutil.rmtree(layout.run)


def _unmount_below(folder: Path) -> None:
    """Unmounts pods' volumes, root file systems and network namespaces, the deepest first.

    Raises RuntimeError if a mount remains.
    """
    for _ in range(3):
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        ours = sorted((mount for mount in mounts if mount.startswith(f"{folder}/")), reverse=True)
        if not ours:
            return
        for mount in ours:
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        time.sleep(0.2)
    raise RuntimeError(f"mounts remain below {folder}: {', '.join(ours)}")
