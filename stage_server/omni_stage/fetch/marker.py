"""The marker file is written as soon as a directory holds all requested files of a commit, and names that commit."""

from __future__ import annotations

import json
from typing import Final

from omni_stage.fetch.json_files import write_part
from omni_stage.fetch.request import FetchRequest

MARKER: Final = ".omni-fetched.json"


def fetched_commit(request: FetchRequest, repository: str) -> str | None:
    """Returns the requested commit if the marker shows that dest holds all files of the commit, else None.

    The hub is not asked: a branch means the commit that was fetched for the branch.
    """
    try:
        marker = json.loads((request.dest / MARKER).read_text(encoding="utf-8"))
        commit = str(marker["commit"])
        same = (marker["repository"], marker.get("component", "")) == (repository, request.component)
        same = same and request.revision in (commit, marker["revision"])
        whole = all((request.dest / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return commit if same and whole else None


def write_marker(request: FetchRequest, repository: str, commit: str) -> None:
    """Mark request.dest as complete."""
    dest = request.dest
    files = {
        str(path.relative_to(dest)): path.stat().st_size
        for path in sorted(dest.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(dest).parts)
    }
    marker = {
        "repository": repository,
        "revision": request.revision,
        "commit": commit,
        "component": request.component,
        "files": files,
    }
    write_part(dest / MARKER, marker).replace(dest / MARKER)
