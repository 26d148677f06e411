"""docs/status.md explains every reason of the operator."""

from __future__ import annotations

import re

import pytest

from omni_operator.reasons import Reason


def test_every_reason_has_its_row(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "status.md").read_text(encoding="utf-8")
    table = page.partition("## Reasons\n\n| Reason | Conditions | Symptom | Remedy |\n|---|---|---|---|\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted(Reason)
    assert len(rows) == len(table.splitlines())
