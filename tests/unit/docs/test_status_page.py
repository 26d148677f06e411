"""docs/status.md has the operator's table of reasons."""

from __future__ import annotations

import pytest

from omni_operator.reasons import render_table


def test_the_table_of_reasons_is_the_operators(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "status.md").read_text()
    assert page.endswith("## Reasons\n\n" + render_table()), "write render_table() under the heading Reasons"
