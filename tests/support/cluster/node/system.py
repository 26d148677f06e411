"""What the node needs from the machine: Linux, root, and a few Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from support.cluster.node.layout import CNI_PLUGINS
from support.processes.build_cache import say

# Program -> Debian package that contains it.
_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "mount": "mount",
}


class UnfitMachineError(RuntimeError):
    """A node cannot run on this machine. The message says why and what to do."""


def prepare() -> None:
    """Checks for Linux and root, and installs missing packages if apt is available.

    Raises:
        UnfitMachineError: not Linux, not root, or a program is missing and cannot be installed.
    """
    if sys.platform != "linux":
        raise UnfitMachineError("a Kubernetes node needs Linux")
    if os.geteuid() != 0:
        raise UnfitMachineError(
            "a Kubernetes node needs root (network namespaces, cgroups, mounts): run the same command with sudo"
        )
    missing = _missing()
    if not missing:
        return
    packages = sorted({_PACKAGES[program] for program in missing})
    if shutil.which("apt-get") is None:
        raise UnfitMachineError(f"missing: {', '.join(missing)}; install the Debian packages {', '.join(packages)}")
    say(f"installing {', '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", *packages]):
        result = subprocess.run(["apt-get", *command], capture_output=True, text=True, env=environment, check=False)
        if result.returncode:
            raise UnfitMachineError(f"apt-get {' '.join(command)}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    if missing := _missing():
        raise UnfitMachineError(f"still missing after installing {', '.join(packages)}: {', '.join(missing)}")


def _missing() -> list[str]:
    return [program for program in _PACKAGES if shutil.which(program) is None]
