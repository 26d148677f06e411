"""A registry of go-containerregistry on this machine, and artifacts in it as `oras push` makes them."""

from __future__ import annotations

import hashlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from omni_cli.local.ports import pick_ports
from support.controlplane.binaries import find_binaries
from support.processes.process import ChildProcess, listening

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"


@contextmanager
def serve_registry(folder: Path) -> Iterator[str]:
    """Yields HOST:PORT of an empty registry that lets everybody in."""
    address = f"127.0.0.1:{pick_ports(1)[0]}"
    command = [str(find_binaries("crane")["crane"]), "registry", "serve", "--address", address, "--disk", str(folder)]
    running = ChildProcess("registry", command, folder.with_suffix(".log"))
    running.start()
    try:
        running.wait_until(lambda: listening(int(address.rpartition(":")[2])))
        yield address
    finally:
        running.kill()


def push(host: str, name: str, tag: str, files: Mapping[str, bytes]) -> None:
    """Pushes files as the layers of an artifact."""
    base = f"http://{host}/v2/{name}"
    layers = [
        {
            **_push_blob(base, content, "application/octet-stream"),
            "annotations": {"org.opencontainers.image.title": file},
        }
        for file, content in files.items()
    ]
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": _push_blob(base, b"{}", _EMPTY), "layers": layers}
    _send(f"{base}/manifests/{tag}", "PUT", json.dumps(manifest).encode(), _MANIFEST)


def _push_blob(base: str, content: bytes, media_type: str) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    _send(f"{base}/blobs/uploads/?digest={digest}", "POST", content, "application/octet-stream")
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _send(url: str, method: str, body: bytes, media_type: str) -> None:
    request = urllib.request.Request(url, body, {"content-type": media_type}, method=method)  # noqa: S310 - this machine
    with urllib.request.urlopen(request, timeout=60):  # noqa: S310 - this machine
        pass
