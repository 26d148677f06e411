"""docs/qwen2-5-omni.md names tests that exist, the figures of the last `make oracle`, and the defaults of the code."""

from __future__ import annotations

import json
import re

import pytest

from omni_stage.models.qwen2_5_omni.talker.component import REPEAT_LIMIT
from omni_stage.models.qwen2_5_omni.thinker.prompts import SPEECH_SYSTEM_PROMPT
from support.doc_names import ROOT, missing_tests, named_tests

PAGE = ROOT / "docs" / "qwen2-5-omni.md"
# Of the 34 failures that were collected, those of this model; the others are Qwen3-Omni's alone.
FAILURES = {1, 3, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 21, 22, 24, 25, 27, 28, 29, 30, 31, 32, 33}


def test_every_test_that_the_page_names_exists() -> None:
    assert len(named_tests(PAGE)) > 30
    assert missing_tests(PAGE) == []


def test_every_failure_is_answered_by_a_test_or_a_reason() -> None:
    section = PAGE.read_text().split("## What goes wrong elsewhere, and here")[1]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if re.match(r"\| \d", line)]
    assert {int(number) for row in rows for number in row[0].split(", ")} == FAILURES
    for row in rows:
        assert len(row) == 4, row[0]
        assert "`test_" in row[3] or row[3] in ("by default", "by design"), row[0]


def test_the_page_has_the_codes_own_words() -> None:
    text = PAGE.read_text()
    assert f"> {SPEECH_SYSTEM_PROMPT}\n" in text
    assert f"a codec token {REPEAT_LIMIT} times in a row" in text


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
