"""A timing table for paced engines whose steps take almost no time, for tests of the code around the engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omni_stage.models.sim.tables import BUILT_IN

TABLE = "qwen2.5-omni-7b-h100"


def write_fast_table(folder: Path, name: str = TABLE, step_ms: float = 0.5, **thinker: Any) -> Path:
    """Writes a copy of a built-in table with short times. Returns its directory.

    A step of the thinker or talker takes `step_ms`, and a step of the decoder at least `step_ms`. Prompts take no time.
    `thinker` adds or replaces fields of the thinker.
    """
    data = json.loads((BUILT_IN / name / "config.json").read_text())
    for stage, curve in (("thinker", "stepMs"), ("talker", "stepMs"), ("decoder", "frameMs")):
        data[stage][curve] = {"1": step_ms if curve == "stepMs" else 0.001}
    data["thinker"]["promptTokenMs"] = data["talker"]["promptTokenMs"] = 0.0
    data["decoder"]["leastMs"] = step_ms
    data["thinker"] |= thinker
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data))
    return folder
