"""The pages in docs/performance show the committed results. Their README shows the same, and all missed goals."""

from __future__ import annotations

import json
import re

import pytest
from benchmarks.__main__ import CASES, PAGES
from benchmarks.harness.page import find_page, render_result
from benchmarks.harness.stored import RESULTS

README = PAGES / "README.md"
HEADLINE = re.compile(
    r"^\| .* \| ([\d.]+) \| ((?:goal: )?[<>]= [\d.]+) \| (yes|\*\*no\*\*) \| \[[\w-]+\.md\]\(([\w-]+\.md)\) \|$", re.M
)
RATIO = re.compile(r"^\| .* \| ([\d.]+) \| ((?:goal: )?[<>]= [\d.]+) \| (yes|\*\*no\*\*) \|", re.M)
OTHER_SECTIONS = ("pods", "operator")
"""Sections of benchmarks that are not cases of `make bench`."""


@pytest.mark.parametrize("name", [*CASES, *OTHER_SECTIONS])
def test_a_page_shows_the_committed_result(name: str) -> None:
    result = RESULTS / f"{name}.json"
    page = find_page(PAGES, name).read_text()
    if result.exists():
        section = page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
        assert section == render_result(json.loads(result.read_text()))


def test_headlines_are_the_figures_of_the_pages() -> None:
    headlines = HEADLINE.findall(README.read_text())
    assert len(headlines) > 25
    for value, bound, met, page in headlines:
        rows = {(_round(shown, value), *rest) for shown, *rest in RATIO.findall((PAGES / page).read_text())}
        assert (float(value), bound, met) in rows, (value, bound, page)


def test_the_readme_omits_no_missed_bound_and_no_page() -> None:
    listed = [(page, bound, value) for value, bound, met, page in HEADLINE.findall(README.read_text()) if met != "yes"]
    pages = [page for page in PAGES.glob("*.md") if page != README]
    missed = [
        (page.name, bound, value)
        for page in pages
        for value, bound, met in RATIO.findall(page.read_text())
        if met != "yes"
    ]
    assert sorted((page, bound) for page, bound, _ in listed) == sorted((page, bound) for page, bound, _ in missed)
    for page in pages:
        assert f"\n| [{page.name}]({page.name}) |" in README.read_text()


def _round(shown: str, value: str) -> float:
    return round(float(shown), len(value.partition(".")[2]))
