"""JSON files that are written atomically: readers never see half of one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_part(target: Path, content: Mapping[str, Any]) -> Path:
    """Writes content as JSON into a file beside target, under a name that no other process uses. Returns its path."""
    with tempfile.NamedTemporaryFile(
        "w", dir=target.parent, prefix=f".{target.name}.", suffix=".part", delete=False, encoding="utf-8"
    ) as file:
        json.dump(content, file, indent=1)
    part = Path(file.name)
    # Temporary files are private; the group of a shared cache reads this one.
    part.chmod(0o664)
    return part
