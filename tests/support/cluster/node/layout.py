"""Paths and names of everything that the test node creates on a machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NODE = "node1"
NETWORK_NAMESPACE = "omnipipe-node"
# Linux limits the name of a network link to 15 characters.
HOST_LINK, NODE_LINK = "omnipipe-host", "omnipipe-node"
CGROUP = "omnipipe-node"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
CNI_PLUGINS = Path("/usr/lib/cni")


@dataclass(frozen=True)
class Layout:
    """The node's folders.

    `run` is removed with the node. `cache` has containerd's and BuildKit's stores and stays, so that images survive.
    """

    run: Path = Path("/var/tmp/omnipipe-node")  # noqa: S108 - one node a machine; sockets need a short path
    cache: Path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline" / "node"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def buildkit_socket(self) -> Path:
        return self.run / "buildkit.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "admin.kubeconfig"

    @property
    def network(self) -> Path:
        """Returns the network namespace's path, for nsenter."""
        return Path("/run/netns") / NETWORK_NAMESPACE
