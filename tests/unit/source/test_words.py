"""scripts/check_words.py: what counts as prose, and which words it finds."""

from __future__ import annotations

import pytest
from scripts.check_words import WORDS, find_words, read_rules

RULES = """
[files]
check = ["docs/*.md"]

[[rule]]
word = "sounds?"
use = "audio"
allow = ["allowed.md"]
"""


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        pytest.param("a.md", "one\nA Sound.\n", [2], id="prose of a page"),
        pytest.param("a.md", "`sound` [x](sound.md)\n```\nsound\n```\nsound_rate\n", [], id="code and names of a page"),
        pytest.param("a.py", '"""The sound."""\nsound = 1  # a sound\n', [1, 2], id="docstring and comment"),
        pytest.param("a.py", 'x = "sound"\nsound(x)\n', [], id="one word of code"),
        pytest.param("a.py", 'x = f"a sound of {x}"\n', [1], id="message"),
        pytest.param("a.yaml", "sound: 1  # a sound\n", [1], id="comment of YAML"),
        pytest.param("allowed.md", "sound", [], id="allowed"),
        pytest.param("a.md", "soundness", [], id="part of a word"),
    ],
)
def test_words_are_found_in_prose(name: str, text: str, lines: list[int]) -> None:
    globs, rules = read_rules(RULES)
    assert globs == ["docs/*.md"]
    assert [finding.line for finding in find_words(name, text, rules)] == lines


def test_the_list_can_be_read() -> None:
    globs, rules = read_rules(WORDS.read_text(encoding="utf-8"))
    assert "docs/**/*.md" in globs
    assert len(rules) > 15
