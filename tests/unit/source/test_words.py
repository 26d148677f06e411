"""tools/check_words.py: what counts as prose, and which words it finds."""

from __future__ import annotations

import pytest
from tools.check_words import ROOT, WORDS, find_identifiers, find_words, read_rules

FOLDERS = (
    "benchmarks",
    "checks",
    "cli",
    "examples",
    "gateway",
    "kube",
    "operator",
    "proto",
    "stage_server",
    "tests",
    "tools",
)
RULES = """
[files]
check = ["docs/*.md"]

[words]
"sounds?" = "audio"

[allow]
"allowed.md" = ["sounds?"]
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


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        pytest.param("a/sounds.py", "x = 1\n", [1], id="file"),
        pytest.param("a.py", "class SoundFeed:\n    def read_sound(self, x): ...\n", [1, 2], id="class and method"),
        pytest.param("a.py", "def f(x,\n  sound): self.sound_rate = (SOUND := x)\n", [2, 2, 2], id="variables"),
        pytest.param("a.py", "f(x.sound, sound=sound)  # sound\n", [], id="names that others define"),
        pytest.param("a.py", "soundness = 1\n", [], id="part of a word"),
        pytest.param("allowed.md", "sound = 1", [], id="allowed"),
    ],
)
def test_words_are_found_in_names_that_a_file_defines(path: str, text: str, lines: list[int]) -> None:
    assert [finding.line for finding in find_identifiers(path, text, read_rules(RULES)[1])] == lines


def test_the_list_can_be_read() -> None:
    globs, rules = read_rules(WORDS.read_text(encoding="utf-8"))
    assert "docs/**/*.md" in globs
    assert len(rules) > 15


def test_names_are_free_of_the_words() -> None:
    rules = read_rules(WORDS.read_text(encoding="utf-8"))[1]
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if "_pb2" not in file.name]
    assert len(files) > 1200
    found = [find_identifiers(str(file.relative_to(ROOT)), file.read_text("utf-8"), rules) for file in files]
    assert [str(finding) for findings in found for finding in findings] == []
