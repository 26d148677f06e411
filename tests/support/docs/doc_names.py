"""Finds tests that pages of docs/ name in code spans but that do not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def code_spans(page: Path) -> list[str]:
    """Returns every text between single backticks, outside of blocks of code."""
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


def named_tests(page: Path) -> set[str]:
    """Returns the names of test functions on the page."""
    return {span for span in code_spans(page) if re.fullmatch(r"test_\w+", span)}


def missing_tests(page: Path) -> list[str]:
    """Returns the named test functions that no test file defines."""
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(name for name in named_tests(page) if f"def {name}(" not in source)
