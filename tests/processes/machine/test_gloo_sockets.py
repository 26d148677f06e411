"""An engine's Gloo process group listens only on loopback, tested in network and mount namespaces like a pod's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
IN_A_POD = (
    """ip link set lo up && ip address add 10.9.9.9/32 dev lo && mount --bind "$HOSTS" /etc/hosts && exec "$@" """
)
"""Gives the host's name an address that is not loopback, as in a pod. The address is on `lo`, the only device here."""


@pytest.mark.full  # tests/pipeline/test_sockets.py looks at real stages, in whatever network runs the tests
def test_gloo_listens_on_loopback_alone_wherever_the_hosts_name_leads(tmp_path: Path) -> None:
    """By default Gloo listens on the address of the host's name, so a dozen ports would be open to the cluster."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not allowed here; tests/pipeline/test_sockets.py looks at real stages")
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n10.9.9.9 {socket.gethostname()}\n")

    def addresses(*arguments: str) -> str:
        command = [
            *unshare,
            "sh",
            "-c",
            IN_A_POD,
            "sh",
            sys.executable,
            "-m",
            "support.machine.gloo_listeners",
            *arguments,
        ]
        environment = {**os.environ, "HOSTS": str(tmp_path / "hosts"), "PYTHONPATH": str(TESTS)}
        environment.pop("GLOO_SOCKET_IFNAME", None)
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    assert addresses("plain") == "10.9.9.9", "what the test would catch"
    assert addresses() == "127.0.0.1"
