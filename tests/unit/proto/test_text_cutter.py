"""Cutting a text that an LLM is writing into parts to speak: what is read aloud, where it is cut, and how early."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from omni_proto.text import LONGEST_UNITS, measure
from omni_proto.writing import SentenceCutter, SpokenText

CORPUS: dict[str, tuple[str, list[str]]] = {
    "English": (
        "The capital of France is Paris. It has 2.1 million people, e.g. my aunt. Dr. Smith said so!",
        ["The capital of France is Paris.", "It has 2.1 million people, e.g. my aunt.", "Dr. Smith said so!"],
    ),
    "the first clause is early": (
        "Well, I think that, on the whole, it is fine; really. And so, my friend, is this.",
        ["Well, I think that,", "on the whole, it is fine; really.", "And so, my friend, is this."],
    ),
    "a short first sentence is not cut": ("Yes, sure. Go on.", ["Yes, sure.", "Go on."]),
    "numbers": (
        "It costs $3.50, or 1,000.25 in all, at 10:30. Version 2.0 is out.",
        ["It costs $3.50,", "or 1,000.25 in all, at 10:30.", "Version 2.0 is out."],
    ),
    "quotes": (
        'He said "Stop." Then he left. “Why?” she asked.',
        ['He said "Stop."', "Then he left.", "“Why?” she asked."],
    ),
    "initials": ("J. R. Smith met U.S. troops. They spoke.", ["J. R. Smith met U.S. troops.", "They spoke."]),
    "German": (
        "Das kostet z.B. am 3. Mai 3,5 Euro. Dr. Weiß kommt bzw. geht. Und dann?",
        ["Das kostet z.B. am 3. Mai 3,5 Euro.", "Dr. Weiß kommt bzw. geht.", "Und dann?"],
    ),
    "French": (
        "M. Dupont est là ! Où va-t-il ? Chez Mme. Petit.",
        ["M. Dupont est là !", "Où va-t-il ?", "Chez Mme. Petit."],
    ),
    "Spanish": ("¿Cómo estás? ¡Muy bien! El Sr. Paz vino.", ["¿Cómo estás?", "¡Muy bien!", "El Sr. Paz vino."]),
    "Chinese": (
        "你好，世界。今天天气很好！我们去公园吧？好的。",
        ["你好，世界。", "今天天气很好！", "我们去公园吧？", "好的。"],
    ),
    "Japanese": (
        "「はい。」と彼は言った。今日は、いい天気ですね。",
        ["「はい。」と彼は言った。", "今日は、いい天気ですね。"],
    ),
    "Arabic": ("مرحبا، كيف حالك؟ أنا بخير.", ["مرحبا، كيف حالك؟", "أنا بخير."]),
    "Hindi": ("नमस्ते। आप कैसे हैं? मैं ठीक हूँ।", ["नमस्ते।", "आप कैसे हैं?", "मैं ठीक हूँ।"]),
    "headings and lists": (
        "# Two things\nHere they are:\n- **one** item\n- [x] another\n\n1. First\n2. Second\n",
        ["Two things", "Here they are:", "one item", "another", "1. First", "2. Second"],
    ),
    "emphasis": (
        "This is *very* **good** and __right__, _is it_? Use `make demo` and ~~no~~ more.",
        ["This is very good and right,", "is it?", "Use make demo and no more."],
    ),
    "what only looks like emphasis": (
        "2 * 3 = 6 and 2*3 too. A ~5 m snake_case.",
        ["2 * 3 = 6 and 2*3 too.", "A ~5 m snake case."],
    ),
    "code is not spoken": (
        "Do this:\n```python\nprint('x. y')\n# a\n```\nThen stop. ~~~\n",
        ["Do this:", "Then stop."],
    ),
    "code that never ends": ("Look:\n```\nwhile True:\n    pass. More.", ["Look:"]),
    "links": (
        "See [the *docs*](https://x.y/z) or https://www.example.com/a/b?c=d. Or ![a cat](cat.png)!",
        ["See the docs or example.com.", "Or a cat!"],
    ),
    "footnotes and tags": (
        "So it is[1] said[^2].<br>Yes, <b>now</b>. 3 < 4 > 2.",
        ["So it is said.", "Yes, now.", "3 < 4 > 2."],
    ),
    "tables": ("| name | age |\n|---|---:|\n| Ann | 3 |\n\nThat is all.", ["name, age", "Ann, 3", "That is all."]),
    "rules and quotations": ("Above\n\n---\n> He said so.\n> - twice\n", ["Above", "He said so.", "twice"]),
    "emoji": ("Great 🎉! Hi 😀 there 👩‍👩‍👧, 🇩🇪 is ok ✅. 1️⃣ done 👍🏽", ["Great!", "Hi there, is ok.", "1 done"]),
    "nothing to speak": ("... 🎉 --- ** \n\n", []),
    "no text": ("", []),
}


def cut(text: str, size: int) -> list[str]:
    cutter = SentenceCutter()
    parts = [part for begin in range(0, len(text), size) for part in cutter.add(text[begin : begin + size])]
    return [*parts, *cutter.end()]


@pytest.mark.parametrize("name", CORPUS)
def test_parts(name: str) -> None:
    text, parts = CORPUS[name]
    whole = cut(text, max(1, len(text)))
    assert [part.rstrip() for part in whole] == parts
    for size in (1, 2, 3, 5, 7, 11):
        assert cut(text, size) == whole, f"the same parts from pieces of {size} letters"


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        pytest.param("The answer to your question, ", [], id="spaces may still be followed by a mark"),
        pytest.param("The answer to your question, I", ["The answer to your question, "], id="the first clause"),
        pytest.param("Yes. ", [], id="a closing quote may follow"),
        pytest.param("Yes. N", ["Yes. "], id="a plain full stop is certain at the next word"),
        pytest.param("At Acme Inc. Th", [], id="an abbreviation needs the next word"),
        pytest.param("At Acme Inc. The b", ["At Acme Inc. "], id="a word that begins sentences"),
        pytest.param("At Acme Inc. Europe b", [], id="a word that does not"),
        pytest.param("你好。好", ["你好。"], id="Chinese has no spaces"),
        pytest.param("One.\n\nTwo", ["One.\n\n"], id="a paragraph"),
        pytest.param("See [the docs](http", [], id="a link is whole"),
    ],
)
def test_a_part_is_spoken_as_soon_as_it_is_certain(written: str, spoken: list[str]) -> None:
    cutter = SentenceCutter()
    assert [part for letter in written for part in cutter.add(letter)] == spoken


def test_no_first_clause() -> None:
    cutter = SentenceCutter(first_units=0)
    assert cutter.add("The answer to your question, I think, is yes. No") == [
        "The answer to your question, I think, is yes. "
    ]


def test_a_sentence_without_end_is_cut() -> None:
    cutter = SentenceCutter(first_units=0)
    parts = [part for _ in range(1000) for part in cutter.add("word and ")]
    assert len(parts) > 5
    assert all(measure(part) <= LONGEST_UNITS for part in parts)
    assert "".join([*parts, *cutter.end()]).split() == ["word", "and"] * 1000


@pytest.mark.parametrize("letter", [" ", "\n", "*", "`", "[", "<", "#", "|", "-", "🎉", "a", "://", "!["])
def test_little_is_held_whatever_is_written(letter: str) -> None:
    spoken = SpokenText()
    for _ in range(3000):
        spoken.add(letter)
    assert len(spoken._held) <= 2000
    spoken.end()


@pytest.mark.parametrize("block", ["```\na\n```\nYes.\n", "~~~\na\n~~~\n", "```\n", "```\n~~~\n```\n- a\n"])
def test_any_number_of_code_blocks_may_come_in_one_piece(block: str) -> None:
    whole, pieces = SpokenText(), SpokenText()
    text = block * 2000
    spoken = "".join(pieces.add(text[place : place + 50]) for place in range(0, len(text), 50)) + pieces.end()
    assert whole.add(text) + whole.end() == spoken


LONG = "The harbour was quiet that night, the boats lay still in the dark water, and nobody heard the bell"


def test_a_sentence_is_cut_at_a_clause_if_the_listener_runs_dry() -> None:
    cutter = SentenceCutter(first_units=0)
    assert cutter.add(LONG) == []
    assert cutter.cut_early(50) == ["The harbour was quiet that night, "], "the last clause of at most 50 units"
    assert cutter.cut_early(0) == ["the boats lay still in the dark water, "], "too late, so as little as possible"
    assert cutter.cut_early(0) == [], "no clause is complete"
    assert cutter.add(". Then it rang, again") == ["and nobody heard the bell. "]
    assert cutter.cut_early(999) == [], "the clause has too few words"
    whole = SentenceCutter(first_units=0)
    whole.add(LONG)
    assert whole.cut_early(999) == ["The harbour was quiet that night, the boats lay still in the dark water, "]


@given(st.text("ab, ;.\n*", max_size=200), st.lists(st.integers(0, 60), max_size=8))
def test_cutting_early_loses_nothing(text: str, limits: list[int]) -> None:
    cutter, whole, pieces = SentenceCutter(), SentenceCutter(), []
    step = len(text) // (len(limits) + 1) + 1
    for number in range(0, len(text), step):
        pieces += cutter.add(text[number : number + step])
        if number // step < len(limits):
            pieces += cutter.cut_early(limits[number // step])
    pieces += cutter.end()
    expected = [*whole.add(text), *whole.end()]
    assert letters(pieces) == letters(expected)


def letters(parts: list[str]) -> str:
    return "".join(letter for part in parts for letter in part if letter.isalnum())
