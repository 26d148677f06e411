"""Installs packages of examples/ into a folder, and needs no build backend for that.

The folder then has what an installer would write: the package, and its dist-info with pyproject.toml's entry points.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"


def install_example(name: str, site: Path) -> Path:
    """Installs the package of examples/NAME into the directory `site`, which belongs on PYTHONPATH. Returns `site`."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLES / name / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    sections = [
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    return site
