"""OCI images with a single layer, written without an image builder."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_OCI = "application/vnd.oci.image"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(
    archive: Path, name: str, layer: Path, *, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> None:
    """Writes an OCI archive with the image `name`, whose only layer is the tar file `layer`."""
    with layer.open("rb") as content:
        digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    variables = [_PATH, *(f"{key}={value}" for key, value in (environment or {}).items())]
    config = _json(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": list(command), "Env": variables},
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        }
    )
    size = layer.stat().st_size
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [{"mediaType": f"{_OCI}.layer.v1.tar", "digest": digest, "size": size}],
        }
    )
    annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}
    entry = _descriptor("manifest.v1+json", manifest) | {"annotations": annotations}
    with tarfile.open(archive, "w") as output:
        _add(output, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(output, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
        for blob in (config, manifest):
            _add(output, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        output.add(layer, f"blobs/sha256/{digest.removeprefix('sha256:')}")


def write_program_layer(layer: Path, program: Path, path: str) -> None:
    """Writes a layer with one static program at `path`."""
    with tarfile.open(layer, "w") as output:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.size, entry.mode = program.stat().st_size, 0o755
        with program.open("rb") as content:
            output.addfile(entry, content)


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _add(output: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    output.addfile(entry, io.BytesIO(content))
