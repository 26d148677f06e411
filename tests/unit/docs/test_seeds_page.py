"""Every file and test that docs/seeds.md names exists. Source files follow the text rules that the page asks for."""

from __future__ import annotations

import re
import subprocess
import unicodedata

import pytest

from support.docs.doc_names import ROOT, code_spans, missing_tests, named_tests

PAGE = ROOT / "docs" / "seeds.md"
ROOTS = (ROOT, ROOT / "stage_server" / "omni_stage", ROOT / "tests", ROOT / "docs")


def test_every_file_named_exists():
    paths = {span for span in code_spans(PAGE) if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w-]+\.(py|md|toml)", span)}
    assert len(paths) > 30
    missing = sorted(path for path in paths if not any((root / path).exists() for root in ROOTS))
    missing = [path for path in missing if path != "test_seeds_page.py"]
    assert missing == []


def test_every_test_named_exists():
    assert len(named_tests(PAGE)) > 50
    assert missing_tests(PAGE) == []


@pytest.mark.parametrize("review", ["000", "001", "002", "003", "004"])
def test_every_review_has_its_table(review):
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (section,) = [section for section in sections if section.startswith(review)]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 8
    assert len({line.count("|") for line in rows}) == 1, "a row has too few or too many cells"


def test_text_of_the_repository_is_plain():
    """Python, proto, YAML and Markdown files end with a newline. Outside of tests, their letters are Latin or Greek.

    Generated protobuf code is not checked. The Python code of stage_server, proto and cli has no to-do comments.
    """
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.proto", "*.yaml", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(listed) > 50
    for name in listed:
        path = ROOT / name
        if not path.exists() or name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        text = path.read_text()
        assert not text or text.endswith("\n"), f"{name} does not end with a newline"
        foreign = {letter for letter in text if ord(letter) > 0x24F and letter.isalpha()}
        strange = {letter for letter in foreign if "GREEK" not in unicodedata.name(letter, "")}
        assert not strange or name.startswith("tests/"), f"{name}: {strange}"
        if name.endswith(".py") and name.startswith(("stage_server/", "proto/", "cli/")):
            assert not re.search(r"#\s*(TODO|FIXME|XXX)", text), name
