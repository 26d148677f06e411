"""The image build has access to all files that it copies, and copies every folder of packages."""

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
    assert copied() == ALLOWED
    assert all((ROOT / source).exists() for source in copied())


def test_every_folder_of_packages_is_copied() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert set(build["dev-mode-dirs"]) <= copied()
    assert {package.split("/")[0] for package in build["targets"]["wheel"]["packages"]} == set(build["dev-mode-dirs"])
