"""The pages of the model families quote the code's defaults and the last run of `make oracle`."""

from __future__ import annotations

import json

from omni_stage.models.qwen2_5_omni.thinker.component import SPEECH_SYSTEM_PROMPT
from omni_stage.models.shared.talker_feed import repeat_limit
from support.docs.doc_examples import ROOT

PAGE, QWEN3_PAGE = ROOT / "docs" / "qwen2-5-omni.md", ROOT / "docs" / "qwen3-omni.md"


def test_the_pages_have_the_codes_own_words() -> None:
    text = PAGE.read_text()
    assert f"> {SPEECH_SYSTEM_PROMPT}\n" in text
    assert f"a codec token {repeat_limit({'tokens_per_second': 50})} times in a row" in text
    assert f"is the same {repeat_limit({'tokens_per_second': 12.5})} times in a row" in QWEN3_PAGE.read_text()


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
