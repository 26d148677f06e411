"""Fills the pages in docs/performance. Their text is written by hand; tables between markers come from result files."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.harness.report import Row


def find_page(folder: Path, name: str) -> Path:
    """Returns the page of the folder that has the section of a case.

    Raises ValueError unless exactly one page has it.
    """
    pages = [page for page in sorted(folder.glob("*.md")) if f"<!-- {name} -->" in page.read_text(encoding="utf-8")]
    if len(pages) != 1:
        raise ValueError(f"{len(pages)} pages in {folder} have the section {name}; one must have <!-- {name} -->")
    return pages[0]


def replace_section(page: str, name: str, body: str) -> str:
    """Returns the page with `body` in place of the text between <!-- NAME --> and <!-- /NAME -->.

    Raises ValueError if the page lacks these markers.
    """
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page has no section {name}")
    return pattern.sub(lambda found: found.group(1) + body + found.group(2), page)


def render_result(result: Row) -> str:
    """Returns a result file as Markdown: the date, the machine, and the ratios that have a bound (if none has: all).

    The result file has the rest: all tables, earlier values and tolerances.
    """
    machine = result["machine"]
    lines = [
        f"{result['date']}, {machine['cores']} cores of {machine['cpu']}, {result['seconds']} s, load "
        f"{machine['load_before'][0]} to {machine['load_after'][0]}.",
        "",
    ]
    if rows := [row for row in result["ratios"] if row["bound"]] or result["ratios"]:
        lines += [*_table([_ratio(row) for row in rows]), ""]
    return "\n".join(lines)


def _ratio(row: Row) -> Row:
    """Returns the page's row for a judged ratio. A value that does not meet its bound is bold."""
    value = _cell(row["value"])
    return {"name": row["name"], "value": f"**{value}**" if row["met"] is False else value, "bound": row["bound"]}


def _table(rows: list[Row]) -> list[str]:
    keys = list(rows[0])
    header = [key.replace("_", " ") for key in keys]
    lines = [header, ["---"] * len(keys), *([_cell(row.get(key)) for key in keys] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(value: object) -> str:
    if isinstance(value, float) and value != round(value, 5):
        return str(round(value, 3))
    return "-" if value is None else str(value)
