"""The pages of the model families name existing tests, answer the known failures, and quote the code's defaults."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from omni_stage.models.qwen2_5_omni.talker.component import REPEAT_LIMIT
from omni_stage.models.qwen2_5_omni.thinker.prompts import SPEECH_SYSTEM_PROMPT
from omni_stage.models.qwen3_omni.talker.component import REPEAT_LIMIT as QWEN3_REPEAT_LIMIT
from support.docs.doc_names import ROOT, missing_tests, named_tests

PAGE, QWEN3_PAGE = ROOT / "docs" / "qwen2-5-omni.md", ROOT / "docs" / "qwen3-omni.md"
# Page -> numbers of the failures that it answers. Users reported 34 failures of other implementations.
FAILURES = {
    PAGE: set(range(1, 34)) - {2, 4, 7, 12, 17, 23, 26},
    QWEN3_PAGE: set(range(2, 35)) - {6, 15, 16, 21, 24, 25},
}


@pytest.mark.parametrize("page", FAILURES, ids=lambda page: page.stem)
def test_every_test_that_the_page_names_exists(page: Path) -> None:
    assert len(named_tests(page)) > 25
    assert missing_tests(page) == []


@pytest.mark.parametrize("page", FAILURES, ids=lambda page: page.stem)
def test_every_failure_is_answered_by_a_test_or_a_reason(page: Path) -> None:
    section = page.read_text().split("## What goes wrong elsewhere, and here")[1]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if re.match(r"\| \d", line)]
    assert {int(number) for row in rows for number in row[0].split(", ")} == FAILURES[page]
    for row in rows:
        assert len(row) == 4, row[0]
        assert "`test_" in row[3] or row[3] in ("by default", "by design"), row[0]


def test_the_pages_have_the_codes_own_words() -> None:
    text = PAGE.read_text()
    assert f"> {SPEECH_SYSTEM_PROMPT}\n" in text
    assert f"a codec token {REPEAT_LIMIT} times in a row" in text
    assert f"is the same {QWEN3_REPEAT_LIMIT} times in a row" in QWEN3_PAGE.read_text()


def test_the_table_is_the_last_run_of_make_oracle() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "oracle.json").read_text())
    rows = report["rows"]
    versions = {row["transformers"] for row in rows if row["judged"]}
    assert len(versions) == 2
    assert {row["result"] for row in rows if row["judged"]} == {"equal"}
    assert max(row["audio_difference"] for row in rows) <= report["audio_tolerance"]
    assert all(version in PAGE.read_text() for version in versions)
    unjudged = [row["result"] for row in rows if not row["judged"]]
    assert unjudged
    assert all(result.startswith("codec differs") for result in unjudged)


@pytest.mark.parametrize("name", ["oracle"])
def test_the_make_target_exists(name: str) -> None:
    assert re.search(rf"^{name}:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
