"""Python, proto, YAML and Markdown files end with a newline. Their letters are Latin or Greek, but in tests and checks.

Generated protobuf code is not checked. The Python code of stage_server, proto and cli has no to-do comments.
"""

from __future__ import annotations

import re
import subprocess
import unicodedata
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def find_mistakes(name: str, text: str) -> Iterator[str]:
    if text and not text.endswith("\n"):
        yield f"{name} does not end with a newline"
    foreign = {letter for letter in text if ord(letter) > 0x24F and letter.isalpha()}
    # Phonetic letters are Latin ones, or modifiers.
    strange = {letter for letter in foreign if not re.match("GREEK|LATIN|MODIFIER", unicodedata.name(letter, ""))}
    if strange and not name.startswith(("checks/", "tests/")):
        yield f"{name}: {strange}"
    if name.endswith(".py") and name.startswith(("stage_server/", "proto/", "cli/")):
        yield from (f"{name}: {mark}" for mark in re.findall(r"#\s*(?:TODO|FIXME|XXX)", text))


def test_text_is_plain() -> None:
    patterns = ["*.py", "*.proto", "*.yaml", "*.md"]
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split() if not name.endswith(("_pb2.py", "_pb2_grpc.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files if path.exists()}
    assert len(texts) > 50
    assert [mistake for name, text in texts.items() for mistake in find_mistakes(name, text)] == []


def test_mistakes_are_found() -> None:
    assert len(list(find_mistakes("cli/a.py", "# TODO \u4e00"))) == 3
