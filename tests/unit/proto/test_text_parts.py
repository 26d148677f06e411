"""Parts of a text that a pipeline can speak one after another."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st

from omni_proto.text import LONGEST_UNITS, measure, pause_after, split_further, split_parts, units_for
from unit.proto.test_text_sentences import TEXTS

FOX = "The quick brown fox jumps over the lazy dog. "


@pytest.mark.parametrize(
    ("text", "longest", "parts"),
    [
        ("One. Two. Three. Four.", 14, ["One. Two. ", "Three. ", "Four."]),
        ("One. Two. Three. Four.", 400, ["One. Two. Three. Four."]),
        ("first this, then that and more", 15, ["first this, ", "then that and ", "more"]),
        ("supercalifragilistic", 8, ["supercal", "ifragili", "stic"]),
        ("今天天气很好我们去公园", 16, ["今天天气", "很好我们", "去公园"]),
        ("1,000,000 people came", 60, ["1,000,000 people came"]),
        ("Hi. 🇩🇪🇫🇷", 14, ["Hi. ", "🇩🇪", "🇫🇷"]),
        ("x👨‍👩‍👧y", 8, ["x", "👨‍👩‍👧", "y"]),
        ("... !!! ...", 100, ["... !!! ..."]),
        ("", 10, []),
    ],
)
def test_parts(text: str, longest: int, parts: list[str]) -> None:
    assert split_parts(text, longest) == parts


@given(TEXTS, st.integers(1, 60))
def test_nothing_is_lost_and_no_letter_is_torn(text: str, longest: int) -> None:
    parts = split_parts(text, longest)
    assert "".join(parts) == text
    assert all(parts)
    for part in parts[1:]:
        assert unicodedata.category(part[0])[0] != "M"
        assert part[0] not in "\u200d\ufe0f"
    for part in parts:
        assert "".join(split_further(part)) == part


LONG = (FOX * 100, "今天天气很好。" * 600, "สวัสดีครับ" * 400, "a" * 4096, "12 " * 1300, "word " * 800)


@pytest.mark.parametrize("text", LONG)
def test_4096_characters_are_parts_that_fit(text: str) -> None:
    parts = split_parts(text)
    assert len(parts) > 1
    assert max(map(measure, parts)) <= LONGEST_UNITS
    sizes = [measure(part) for part in parts]
    assert sum(sizes) / len(sizes) > LONGEST_UNITS / 2, "no more parts than needed"


def test_sentences_are_kept_whole_if_they_fit() -> None:
    assert all(part.endswith(". ") for part in split_parts(FOX * 100))


@pytest.mark.parametrize(
    ("part", "further"),
    [("Good morning!", ["Good ", "morning!"]), ("Yes.", ["Yes."]), ("One. Two.", ["One. ", "Two."]), ("…", ["…"])],
)
def test_a_part_that_was_too_long_is_cut_further(part: str, further: list[str]) -> None:
    assert split_further(part) == further


@given(TEXTS)
def test_cutting_further_ends(text: str) -> None:
    """Each cut makes shorter texts, so speaking again ends."""
    waiting, cuts = [text] if text else [], 0
    while waiting:
        part = waiting.pop()
        further = split_further(part)
        if len(further) > 1:
            assert all(len(one) < len(part) for one in further)
            waiting += further
            cuts += 1
    assert cuts <= len(text)


def test_a_digit_and_a_chinese_character_take_longer_than_a_letter() -> None:
    assert measure("abcd") < measure("1234")
    assert measure("word") < measure("你好世界")


@pytest.mark.parametrize(
    ("tokens", "units"), [(0, 400), (4096, 400), (1600, 400), (400, 100), (128, 80), (64, 64), (24, 24), (1, 12)]
)
def test_units_of_a_limit(tokens: int, units: int) -> None:
    assert units_for(tokens) == units


def test_pauses_are_longer_after_paragraphs_than_after_clauses() -> None:
    ends = ["One,", "One. ", "“One.” ", "One。", "One.\n\n"]
    assert [pause_after(end) for end in ends] == [0.06, 0.2, 0.2, 0.2, 0.4]
