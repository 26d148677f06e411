"""The image build gets all files that it copies and copies every folder of packages. The GPU image finds the driver."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ALLOWED = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
"""The paths that .dockerignore includes again after excluding everything."""


def copied() -> set[str]:
    """Returns the sources of all COPY instructions that copy from the checkout and not from another build stage."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    return {source for line in lines for source in line.split()[:-1]}


def test_the_build_gets_what_it_copies() -> None:
    assert {source for source in copied() if not any(source.startswith(f"{folder}/") for folder in ALLOWED)} == ALLOWED
    assert all((ROOT / source).exists() for source in copied())


def test_every_folder_of_packages_is_copied() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(build["dev-mode-dirs"]) <= copied()
    assert {package.split("/")[0] for package in build["targets"]["wheel"]["packages"]} == set(build["dev-mode-dirs"])


def test_the_gpu_image_finds_a_driver_that_only_a_mount_provides() -> None:
    """GKE mounts the driver at /usr/local/nvidia, where the dynamic linker does not search by itself."""
    stage = (ROOT / "Dockerfile").read_text().split(" AS stage-gpu\n")[1]
    variables = dict(re.findall(r"^(?:ENV|   ) (\w+)=(\S+)", stage, re.MULTILINE))
    assert variables["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
    assert variables["PATH"] == "$PATH:/usr/local/nvidia/bin"
