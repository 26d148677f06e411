"""Result files are rendered as Markdown tables and put into the sections of the pages in docs/performance."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness.page import find_page, render_result, replace_section

RESULT = {
    "date": "2026-01-02",
    "machine": {"cores": 2, "cpu": "a CPU", "load_before": [0.5, 1, 1], "load_after": [1.5, 1, 1]},
    "seconds": 12,
    "ratios": [
        {"name": "x", "value": 0.4, "bound": ">= 0.5", "met": False, "last": 0.6, "to_last": 0.667, "tolerance": 0.1},
        {"name": "y", "value": 2.0, "bound": None, "met": None, "last": None, "to_last": None, "tolerance": 0.25},
    ],
    "tables": {"streams": [{"side": "a", "gb_per_s": 1.5}]},
}


def test_a_section_is_exchanged_and_the_rest_stays() -> None:
    page = "before\n<!-- a -->\nold \\1\n<!-- /a -->\nbetween\n<!-- b -->\n<!-- /b -->\n"
    assert replace_section(page, "a", "new \\1\n") == page.replace("old", "new")
    assert replace_section(page, "b", "x\n") == page.replace("<!-- b -->\n", "<!-- b -->\nx\n")


def test_a_page_without_the_section() -> None:
    with pytest.raises(ValueError, match="no section c"):
        replace_section("<!-- a -->\n<!-- /a -->\n", "c", "")


def test_the_page_of_a_case(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text("<!-- a -->\n<!-- /a -->\n<!-- b -->\n<!-- /b -->\n")
    (tmp_path / "two.md").write_text("<!-- b -->\n<!-- /b -->\n")
    assert find_page(tmp_path, "a") == tmp_path / "one.md"
    with pytest.raises(ValueError, match=r"2 pages .* have the section b"):
        find_page(tmp_path, "b")
    with pytest.raises(ValueError, match=r"0 pages .* have the section c"):
        find_page(tmp_path, "c")


def test_a_page_shows_the_ratios_that_have_a_bound() -> None:
    lines = render_result(RESULT).splitlines()
    assert lines[0].endswith("load 0.5 to 1.5.")
    assert lines[4:] == ["| x | **0.4** | >= 0.5 |"]
    unbounded = RESULT["ratios"][1:]
    assert "| y | 2.0 | - |" in render_result({**RESULT, "ratios": unbounded}).splitlines()
    assert "|" not in render_result({**RESULT, "ratios": []})
