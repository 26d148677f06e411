"""A minute of `make soak HOSTILE=1`: well-behaved clients get correct answers beside 32 hostile ones, in bounded
memory.

Whether they are served as fast as alone is for a quiet machine to say: the soak does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from soak.hostile import run_hostile

pytestmark = [pytest.mark.pipeline, pytest.mark.full]


async def test_honest_callers_beside_hostile_ones(tmp_path: Path) -> None:
    report: dict[str, Any] = await run_hostile(0.7, tmp_path)
    assert report["problems"] == []
    assert report["hostile"]["INVALID_ARGUMENT"] > 100
