"""The plugin of kubectl for krew: an archive with a program that runs `omnipipe`, and krew's manifest of it.

krew installs no Python packages, so the program says how to install what it needs.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import yaml
from tools.release.distributions import HOME

ARCHIVE = "kubectl-omni.tar.gz"
MANIFEST = "omni.krew.yaml"
_PROGRAM = """#!/bin/sh
# kubectl omni: runs omnipipe, with the name that its help shows.
if ! command -v omnipipe >/dev/null; then
  echo "error: kubectl omni needs omnipipe; pip install 'omnipipeline[cli,cluster]==VERSION'" >&2
  exit 1
fi
exec omnipipe "$@"
"""


def write_plugin(out: Path, version: str, license_file: Path) -> None:
    """Write the archive and the manifest into `out`. The same arguments give the same bytes."""
    files = {"kubectl-omni": _PROGRAM.replace("VERSION", version).encode(), "LICENSE": license_file.read_bytes()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name == "kubectl-omni" else 0o644
            archive.addfile(member, io.BytesIO(content))
    (out / ARCHIVE).write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    digest = hashlib.sha256((out / ARCHIVE).read_bytes()).hexdigest()
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "omni"},
        "spec": {
            "version": f"v{version}",
            "homepage": HOME,
            "shortDescription": "Ask, check and watch any-to-any model pipelines",
            "description": "Sends requests to pipelines, shows their stages, logs and load, and checks a cluster.\n",
            "caveats": f"Needs Python: pip install 'omnipipeline[cli,cluster]=={version}'\n",
            "platforms": [
                {
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
                    "uri": f"{HOME}/releases/v{version}/{ARCHIVE}",
                    "sha256": digest,
                    "bin": "kubectl-omni",
                    "files": [{"from": name, "to": "."} for name in files],
                }
            ],
        },
    }
    (out / MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")
