"""The commit file records the commit that a revision named when the first stage of a pipeline looked it up.

Stages that share a cache share this file. So they all use the same commit, even if they download at different times.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from omni_stage.fetch.json_files import write_part

COMMIT: Final = re.compile(r"[0-9a-f]{40}\Z")
"""A commit's hash."""


def read_pin(file: Path | None, repository: str, revision: str) -> str | None:
    """Returns the commit that a commit file records for this revision; None if it records none."""
    if file is None:
        return None
    try:
        pin = json.loads(file.read_text(encoding="utf-8"))
        same = (pin["repository"], pin["revision"]) == (repository, revision)
        return str(pin["commit"]) if same and COMMIT.match(pin["commit"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_pin(file: Path, repository: str, revision: str, commit: str) -> str:
    """Record the commit, unless another stage was first. Returns the recorded commit."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = write_part(file, {"repository": repository, "revision": revision, "commit": commit})
    try:
        # Unlike a rename, a link fails if the file exists.
        os.link(part, file)
    except OSError:
        # The file exists, or the volume has no hard links. Replace a file that records no commit for this revision.
        if read_pin(file, repository, revision) is None:
            part.replace(file)
    part.unlink(missing_ok=True)
    return read_pin(file, repository, revision) or commit
