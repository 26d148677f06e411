"""The node's containerd: Debian's package with its own configuration, store and socket."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.cluster.node.daemon import Daemon
from support.cluster.node.layout import CNI_PLUGINS, POD_NETWORK, Layout

PAUSE_IMAGE = "localhost/pause:1"
_CONFIGURATION = """\
version = 2
root = "{cache}/containerd"
state = "{run}/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  # Without CAP_SYS_RESOURCE no score can be lowered.
  restrict_oom_score_adj = true
  sandbox_image = "{pause}"
  # Below our state instead of among the machine's named network namespaces.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{run}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


class Containerd:
    """The daemon, and `ctr` in the containerd namespace that the kubelet uses (k8s.io)."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        configuration = layout.run / "containerd.toml"
        self.daemon = Daemon(layout, "containerd", ["containerd", "--config", configuration])

    def start(self) -> None:
        """Writes the configuration, starts the daemon and waits until it answers."""
        layout = self._layout
        (layout.cache / "containerd").mkdir(parents=True, exist_ok=True)
        (layout.run / "cni").mkdir(exist_ok=True)
        (layout.run / "cni" / "10-bridge.conflist").write_text(json.dumps(_bridge(layout)))
        (layout.run / "containerd.toml").write_text(
            _CONFIGURATION.format(
                cache=layout.cache, run=layout.run, socket=layout.containerd_socket, pause=PAUSE_IMAGE, cni=CNI_PLUGINS
            )
        )
        self.daemon.start()
        self.daemon.wait_until(lambda: self._ctr("version", check=False).returncode == 0)

    def ctr(self, *arguments: str | Path, timeout_s: float = 600.0) -> str:
        """Runs ctr. Returns its output. Raises RuntimeError if ctr fails."""
        return self._ctr(*arguments, timeout_s=timeout_s).stdout

    def has_image(self, name: str) -> bool:
        """Returns whether the store has an image of that full name."""
        return name in self.ctr("images", "list", "--quiet").split()

    def import_image(self, archive: Path) -> None:
        """Imports an OCI archive. The image is unpacked when it is first used."""
        self.ctr("images", "import", "--no-unpack", archive)

    def forget_untagged(self) -> None:
        """Removes images whose name a newer build has taken.

        containerd's CRI plugin would keep each of them under its ID, which costs gigabytes.
        """
        images = [line.split()[:3] for line in self.ctr("images", "list").splitlines()[1:]]
        tagged = {digest for name, _, digest in images if not name.startswith("sha256:")}
        for name, _, digest in images:
            if name.startswith("sha256:") and digest not in tagged:
                self.ctr("images", "remove", name)

    def remove_containers(self) -> None:
        """Deletes all tasks and containers, because the store outlives the node. Their processes must have ended."""
        for name in self.ctr("tasks", "list", "--quiet").split():
            self._ctr("tasks", "delete", "--force", name, check=False)
        for name in self.ctr("containers", "list", "--quiet").split():
            self._ctr("containers", "delete", name, check=False)

    def _ctr(
        self, *arguments: str | Path, check: bool = True, timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", self._layout.containerd_socket, "--namespace", "k8s.io", *arguments]
        result = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if check and result.returncode:
            raise RuntimeError(f"ctr {' '.join(map(str, arguments))}: {result.stderr.strip()}")
        return result


def _bridge(layout: Layout) -> dict[str, object]:
    """Returns the CNI configuration, which connects pods to a bridge in the node's network namespace."""
    ranges = [[{"subnet": POD_NETWORK.replace("0.0/16", "0.0/24")}]]
    ipam = {
        "type": "host-local",
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(layout.run / "addresses"),
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "bridge", "plugins": [bridge, ports]}
