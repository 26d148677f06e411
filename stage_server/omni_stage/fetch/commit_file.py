"""The commit file: which commit a revision meant when the first stage of a pipeline asked.

Stages that share a cache share the file, so they never mix two commits, however far apart they are fetched.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from omni_stage.fetch.json_files import write_part

COMMIT: Final = re.compile(r"[0-9a-f]{40}\Z")
"""A commit's name."""


def read_pin(file: Path | None, repository: str, revision: str) -> str | None:
    """Returns the commit that a commit file keeps for this revision; None if it keeps none."""
    if file is None:
        return None
    try:
        pin = json.loads(file.read_text(encoding="utf-8"))
        same = (pin["repository"], pin["revision"]) == (repository, revision)
        return str(pin["commit"]) if same and COMMIT.match(pin["commit"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pin(file: Path, repository: str, revision: str, commit: str) -> str:
    """Keeps the commit, unless another stage was first. Returns the commit that is kept."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = write_part(file, {"repository": repository, "revision": revision, "commit": commit})
    try:
        # Unlike a rename, a link fails if the file is there.
        os.link(part, file)
    except OSError:
        # There already, or links are not known here. What is no pin for this revision is replaced.
        if read_pin(file, repository, revision) is None:
            part.replace(file)
    part.unlink(missing_ok=True)
    return read_pin(file, repository, revision) or commit
