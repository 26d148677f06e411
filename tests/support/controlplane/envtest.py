"""etcd, kube-apiserver and kubectl as setup-envtest gets them: one archive for each platform. Standard library only."""

from __future__ import annotations

import hashlib
import io
import platform
import tarfile
import time
import urllib.request
from pathlib import Path

from support.processes.build_cache import cache_root, fill_once, say

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
VERSION = "v1.34.1"
_URL = "https://github.com/kubernetes-sigs/controller-tools/releases/download/envtest-{version}/{file}"
_SHA256 = {
    "amd64": "c8500090806ed5ce4064eeeb2a5666476a5168c1f4ff0eadd54fe59b22c4baa7",
    "arm64": "cb56759108ea15933abf79d8573bbf66cca8c13e20425d7bc9f95941a060649d",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAXIMUM_BYTES = 300 << 20
_SILENCE_S = 5.0
_DOWNLOAD_S = 120.0


def folder() -> Path:
    """Returns the cache folder of the downloaded programs. It exists only if it is complete."""
    return cache_root() / "go" / f"envtest-{VERSION}-{_architecture()}"


def download() -> None:
    """Fills the cache folder. Does nothing, except say why, where the archive cannot be had or is not the known one."""
    if _architecture() not in _SHA256:
        return
    try:
        fill_once(folder(), "envtest", _fill)
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        say(f"not downloaded: {', '.join(PROGRAMS)} ({error})")


def _architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _fill(building: Path) -> None:
    file = f"envtest-{VERSION}-linux-{_architecture()}.tar.gz"
    say(f"downloading {file} (once)")
    address = _URL.format(version=VERSION, file=file)
    deadline = time.monotonic() + _DOWNLOAD_S
    archive = b""
    with urllib.request.urlopen(address, timeout=_SILENCE_S) as response:  # noqa: S310 - the address is ours
        while part := response.read(1 << 20):
            archive += part
            if time.monotonic() > deadline or len(archive) > _MAXIMUM_BYTES:
                raise TimeoutError(f"{len(archive)} bytes so far")
    digest = hashlib.sha256(archive).hexdigest()
    if digest != _SHA256[_architecture()]:
        raise ValueError(f"{file} has the SHA-256 checksum {digest}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for name in PROGRAMS:
            member = members.getmember(f"controller-tools/envtest/{name}")
            source = members.extractfile(member)
            if source is None:
                raise ValueError(f"{file}: {name} is no file")
            (building / name).write_bytes(source.read())
            (building / name).chmod(0o755)
