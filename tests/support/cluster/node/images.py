"""The node's images: pause, the Dockerfile's base image, and our own, which BuildKit builds straight into containerd.

No registry is used. The base image has the name that the Dockerfile's FROM uses and is made from Debian's packages. It
also contains this machine's certificates and package index configuration, so it must stay on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.cluster.node.containerd import PAUSE_IMAGE, Containerd
from support.cluster.node.daemon import Daemon
from support.cluster.node.layout import CGROUP, Layout
from support.cluster.node.oci import write_image, write_program_layer
from support.controlplane.binaries import find_binaries
from support.processes.build_cache import say

ROOT = Path(__file__).resolve().parents[4]
BASE_IMAGE = "docker.io/library/python:3.11-slim-bookworm"
OPERATOR_IMAGE, STAGE_IMAGE = "localhost/omnipipeline-operator:e2e", "localhost/omnipipeline-stage:e2e"
DEMO_IMAGE = "localhost/omnipipeline-demo:e2e"
_TARGETS = {OPERATOR_IMAGE: "operator", STAGE_IMAGE: "stage-cpu", DEMO_IMAGE: "demo"}
_MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
# What the official image has besides Debian's minimum: Python with venv, and certificates.
_BASE_PACKAGES = "ca-certificates,libpython3-stdlib,python3,python3-venv"
# How this machine reaches the package index. Each file is copied to the same path in the image.
_INDEX_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf", "/etc/uv/uv.toml")
_INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX")
_BUILDKIT_CONFIGURATION = """\
root = "{cache}/buildkit"
[grpc]
  address = ["unix://{socket}"]
[worker.oci]
  enabled = false
[worker.containerd]
  address = "{containerd}"
  enabled = true
  namespace = "k8s.io"
  snapshotter = "overlayfs"
  networkMode = "host"
  defaultCgroupParent = "{cgroup}/build"
  # The layers and caches of one version of the stage image have 6 GB; those of older versions are removed.
  gc = true
  reservedSpace = "8GB"
  maxUsedSpace = "12GB"
  [worker.containerd.runtime]
    name = "io.containerd.runc.v2"
    [worker.containerd.runtime.options]
      BinaryName = "{run}/runc-on-machine"
"""


class Images:
    """Fills containerd's store. An unchanged image takes only seconds."""

    def __init__(self, layout: Layout, containerd: Containerd) -> None:
        self._layout = layout
        self._containerd = containerd
        self._binaries = find_binaries("buildkitd", "buildctl", "pause")
        self._buildkit = Daemon(
            layout, "buildkitd", [self._binaries["buildkitd"], "--config", layout.run / "buildkitd.toml"], in_node=False
        )

    def load_pause(self) -> None:
        """Imports the pods' sandbox image, unless it is there."""
        if self._containerd.has_image(PAUSE_IMAGE):
            return
        with tempfile.TemporaryDirectory(dir=self._layout.run) as temporary:
            layer = Path(temporary) / "layer.tar"
            write_program_layer(layer, self._binaries["pause"], "/pause")
            self._import(PAUSE_IMAGE, layer, command=["/pause"])

    def build(self, *images: str) -> None:
        """Builds `images` from the checkout's Dockerfile. Default: both the operator's and the stage's."""
        self._make_base()
        self._start_buildkit()
        try:
            for image in images or (OPERATOR_IMAGE, STAGE_IMAGE):
                say(f"building {image}")
                self._build(image, _TARGETS[image])
        finally:
            self._buildkit.stop()
        self._containerd.forget_untagged()

    def _make_base(self) -> None:
        if self._containerd.has_image(BASE_IMAGE):
            return
        say(f"making a base image from Debian's packages, as {BASE_IMAGE}")
        with tempfile.TemporaryDirectory(dir=self._layout.run) as temporary:
            tree, layer = Path(temporary) / "tree", Path(temporary) / "layer.tar"
            _run("debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}", "bookworm", str(tree), _MIRROR)
            shutil.rmtree(tree / "var/cache/apt/archives", ignore_errors=True)
            (tree / "usr/bin/python").symlink_to("python3")
            for file in map(Path, _INDEX_FILES):
                if file.exists():
                    (tree / file.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, tree / file.relative_to("/"))
            _run("tar", "--directory", str(tree), "--numeric-owner", "--create", "--file", str(layer), ".")
            index = {name: os.environ[name] for name in _INDEX_VARIABLES if name in os.environ}
            self._import(BASE_IMAGE, layer, command=["python3"], environment=index)

    def _import(
        self, name: str, layer: Path, *, command: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        archive = layer.with_name("image.tar")
        write_image(archive, name, layer, command=command, environment=environment)
        self._containerd.import_image(archive)

    def _start_buildkit(self) -> None:
        layout = self._layout
        # The node's network namespace has no route to the internet. RUN steps join the machine's namespace instead.
        wrapper = layout.run / "runc-on-machine"
        wrapper.write_text(
            f'#!/bin/sh\nread -r pid _ <{layout.run}/buildkitd.pid\nexec nsenter --net=/proc/"$pid"/ns/net runc "$@"\n'
        )
        wrapper.chmod(0o755)
        (layout.cache / "buildkit").mkdir(exist_ok=True)
        (layout.run / "buildkitd.toml").write_text(
            _BUILDKIT_CONFIGURATION.format(
                cache=layout.cache,
                run=layout.run,
                socket=layout.buildkit_socket,
                containerd=layout.containerd_socket,
                cgroup=CGROUP,
            )
        )
        self._buildkit.start()
        self._buildkit.wait_until(lambda: self._buildctl("debug", "workers", check=False) == 0)

    def _build(self, image: str, target: str) -> None:
        self._buildctl(
            "build",
            "--progress=plain",
            "--frontend=dockerfile.v0",
            f"--local=context={ROOT}",
            f"--local=dockerfile={ROOT}",
            f"--opt=target={target}",
            "--opt=image-resolve-mode=local",
            # Not compressed: compressing takes longer than all other steps, and the images stay on this machine.
            f"--output=type=image,name={image},unpack=true,compression=uncompressed",
        )

    def _buildctl(self, *arguments: str, check: bool = True) -> int:
        command = [str(self._binaries["buildctl"]), "--addr", f"unix://{self._layout.buildkit_socket}", *arguments]
        log = self._layout.logs / "images.log"
        with log.open("ab") as output:
            status = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
        if check and status:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            raise RuntimeError(f"buildctl failed:\n{tail}")
        return status


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
