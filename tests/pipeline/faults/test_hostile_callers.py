"""`make soak HOSTILE=1` for 0.7 minutes: well-behaved clients get correct answers despite 32 hostile clients.

The entry stage's memory stays bounded. Only the full soak, on an idle machine, also checks that well-behaved clients
wait at most twice as long as without hostile ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks.soak.hostile import run_hostile

pytestmark = [pytest.mark.pipeline, pytest.mark.full]


async def test_well_behaved_callers_beside_hostile_ones(tmp_path: Path) -> None:
    report: dict[str, Any] = await run_hostile(0.7, tmp_path)
    assert report["problems"] == []
    assert report["hostile"]["INVALID_ARGUMENT"] > 100
