"""Packages of examples/, put where an interpreter finds them as installed: the code and its metadata.

No build backend is asked for; what is written is what an installer leaves behind: the package and its dist-info with
the entry points of pyproject.toml.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def install_example(name: str, site: Path) -> Path:
    """Install the package of examples/NAME into the directory `site`, to be put on PYTHONPATH; returns it."""
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
