"""Writes JSON files atomically: readers never see half a file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_part(target: Path, content: Mapping[str, Any]) -> Path:
    """Writes content as JSON into a file in target's folder, under a name that no other process uses. Returns its path.

    The caller renames it to target.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", suffix=".part", delete=False, encoding="utf-8"
    ) as file:
        json.dump(content, file, indent=1)
    part = Path(file.name)
    # Temporary files are readable by their owner only, but the group of a shared cache must read this one.
    part.chmod(0o664)
    return part
