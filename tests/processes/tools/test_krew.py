"""The plugin of kubectl in a release: krew's archive and manifest, and the program in the archive."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from tools.release.build import ARCHIVE, MANIFEST, write_plugin

LICENSE = Path(__file__).parents[3] / "LICENSE"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Returns a folder with the unpacked archive."""
    write_plugin(tmp_path, "0.2.0", LICENSE)
    with tarfile.open(tmp_path / ARCHIVE) as archive:
        archive.extractall(tmp_path / "bin", filter="data")
    return tmp_path


def test_the_manifest_names_what_is_in_the_archive(plugin: Path) -> None:
    manifest = yaml.safe_load((plugin / MANIFEST).read_text())
    (platform,) = manifest["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256((plugin / ARCHIVE).read_bytes()).hexdigest()
    assert platform["uri"].endswith(f"/v0.2.0/{ARCHIVE}")
    assert {one["from"] for one in platform["files"]} == {path.name for path in (plugin / "bin").iterdir()}
    assert manifest["spec"]["version"] == "v0.2.0"
    # krew-index's own limit, and its naming guide: no "kubectl" and no "kubernetes" in the name.
    assert len(manifest["spec"]["shortDescription"]) <= 50
    again = plugin / "again"
    again.mkdir()
    write_plugin(again, "0.2.0", LICENSE)
    assert (again / ARCHIVE).read_bytes() == (plugin / ARCHIVE).read_bytes()


def test_the_program_runs_omnipipe_or_says_how_to_install_it(plugin: Path) -> None:
    program = plugin / "bin" / "kubectl-omni"

    def run(path: Path) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{path}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
        return subprocess.run([program, "list", "-A"], capture_output=True, text=True, env=environment, check=False)

    missing = run(plugin)
    assert missing.returncode == 1
    assert "pip install 'omnipipeline[cli,cluster]==0.2.0'" in missing.stderr
    other = plugin / "other"
    other.mkdir()
    (other / "omnipipe").write_text('#!/bin/sh\necho "$@"\n')
    (other / "omnipipe").chmod(0o755)
    assert run(other).stdout == "list -A\n"
