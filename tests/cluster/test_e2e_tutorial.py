"""The tutorial for kind, from manifests/tiny/model.yaml on, command by command on a real node.

Only the port, the model's name and the place of the output file are replaced.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from tools.release.version import read_version

from omni_cli.local.ports import pick_ports
from support.cluster.cluster import Cluster
from support.cluster.node.images import ROOT, STAGE_IMAGE
from support.cluster.workload import add_persistent_volume, make_namespace
from support.controlplane.server.api import eventually
from support.docs.doc_examples import console_commands

NAMESPACE = "readme"
NAMED_BY_MANIFESTS = f"docker.io/library/omnipipeline-stage:{read_version()}-cpu"
PORT = "8000"


@pytest.fixture
def environment(cluster: Cluster, operator: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yields a user's environment: kubectl and omnipipe on the PATH, `readme` as namespace, a volume for the claim."""
    # In place of a registry: the image gets the name that the manifests use.
    cluster.containerd.ctr("images", "tag", "--force", STAGE_IMAGE, NAMED_BY_MANIFESTS)
    make_namespace(cluster, NAMESPACE)
    folder = cluster.layout.run / "readme"
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o777)  # regardless of the umask: the Job's user writes here
    # In place of a StorageClass: a volume that the claim of manifests/tiny binds to.
    volume = add_persistent_volume(cluster, NAMESPACE, "tiny-omni", folder)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(cluster.binaries["kubectl"])
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = NAMESPACE
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    path = f"{programs}:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    yield {**os.environ, "PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    cluster.admin.delete("Namespace", NAMESPACE)
    cluster.admin.delete("PersistentVolume", volume["metadata"]["name"])


@pytest.mark.timeout(1200)
def test_from_nothing_to_speech(environment: dict[str, str], tmp_path: Path) -> None:
    commands = console_commands(ROOT / "docs" / "tutorials" / "kind.md")["Install and serve"]
    commands = commands[next(n for n, text in enumerate(commands) if "manifests/tiny/model.yaml" in text) :]
    assert commands[-1].startswith("curl ")
    (port,) = pick_ports(1)  # the tutorial's port may be in use on this machine
    forward: subprocess.Popen[bytes] | None = None
    try:
        for command in commands:
            # Another test may serve a pipeline of the same name: use NAMESPACE/NAME.
            wanted = command.replace("hello.wav", str(tmp_path / "hello.wav")).replace(
                '"model": "tiny-omni"', f'"model": "{NAMESPACE}/tiny-omni"'
            )
            if command.endswith("&"):
                wanted = wanted.removesuffix("&").replace(f" {PORT}", f" {port}:{PORT}")
                forward = subprocess.Popen(["sh", "-c", f"exec {wanted}"], cwd=ROOT, env=environment)
                continue
            if forward is not None:
                wanted = wanted.replace(f":{PORT}", f":{port}")
                # A user waits for kubectl's "Forwarding from" here; the tutorial has no command for that.
                eventually(lambda: _listens(port), timeout_s=30, why="kubectl forwards the port")
            done = subprocess.run(
                ["sh", "-c", wanted],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            assert done.returncode == 0, f"{wanted}:\n{done.stdout}{done.stderr}"
        page = httpx.get(f"http://localhost:{port}", timeout=30)
    finally:
        if forward is not None:
            forward.send_signal(signal.SIGTERM)
            forward.wait(timeout=30)
    audio = (tmp_path / "hello.wav").read_bytes()
    # The header of a streamed WAV (44 bytes) is sent before the length is known, so its length fields are not checked.
    assert (audio[:4], audio[8:12], int.from_bytes(audio[24:28], "little")) == (b"RIFF", b"WAVE", 24_000)
    samples = np.frombuffer(audio[44:], np.int16)
    assert samples.size > 1000
    assert np.abs(samples).max() > 0
    assert page.status_code == 200
    assert "main.js" in page.text


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
