"""The pages in docs/performance show the committed results."""

from __future__ import annotations

import json

import pytest
from benchmarks.__main__ import CASES, PAGES
from benchmarks.harness.page import find_page, render_result
from benchmarks.harness.stored import RESULTS

OTHER_SECTIONS = ("pods", "operator")
"""Sections of benchmarks that are not cases of `make bench`."""


@pytest.mark.parametrize("name", [*CASES, *OTHER_SECTIONS])
def test_a_page_shows_the_committed_result(name: str) -> None:
    result = RESULTS / f"{name}.json"
    page = find_page(PAGES, name).read_text()
    if result.exists():
        section = page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
        assert section == render_result(json.loads(result.read_text()))
