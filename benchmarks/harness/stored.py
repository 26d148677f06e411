"""Reads the last committed result of a case, and writes a new one.

A run that fails never replaces the result that it was compared with. Its own result goes to CASE.rejected.json, which
git ignores. To accept a worse figure, move that file over CASE.json and give the reason in the commit.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tools.json_text import format_json

RESULTS = Path(__file__).parents[1] / "results"


def load_committed(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """Returns the case's result in this folder at git's HEAD, or None if there is none.

    Uncommitted results are not used, because a figure could then get a little worse with each run. Only if git or a
    commit of the file is missing, the function returns the current file's content.
    """
    file = folder / f"{name}.json"
    shown = _git_show(file) if folder.is_dir() else None
    if shown is None and file.exists():
        shown = file.read_text(encoding="utf-8")
    return None if shown is None else dict(json.loads(shown))


def write_result(name: str, folder: Path, result: dict[str, Any], *, accepted: bool) -> Path:
    """Write a result to CASE.json if it is accepted, else to CASE.rejected.json. Returns the path.

    An older rejected result is removed.
    """
    file, rejected = folder / f"{name}.json", folder / f"{name}.rejected.json"
    rejected.unlink(missing_ok=True)
    written = file if accepted else rejected
    written.write_text(format_json(result), encoding="utf-8")
    return written


def _git_show(file: Path) -> str | None:
    command = ["git", "-C", str(file.parent), "show", f"HEAD:./{file.name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
