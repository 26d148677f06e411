"""Text to the symbols of a voice: numbers, phonemes, ids, sentences."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.checkpoint import find_phonemizer
from omni_stage.models.voice.text.english import English, read_dictionary
from omni_stage.models.voice.text.letters import guess_phones
from omni_stage.models.voice.text.numbers import cardinal, normalize, ordinal
from omni_stage.models.voice.text.symbols import MAX_IDS, SymbolTable, VoiceReader, Written, place_words

DICTIONARY = """;;; comment
apple AE1 P AH0 L
better B EH1 T ER0
capital K AE1 P AH0 T AH0 L
capital(2) K AE1 P IH0 T AH0 L
note N OW1 T
book B UH1 K
the DH AH0
of AH1 V
is IH1 Z # a comment
paris P EH1 R IH0 S
watch W AA1 CH
"""
IPA = "abdefhijklmnopstuvwzæðŋɐɑɔəɚɛɜɡɪɹɾʃʊʌʒθˈˌː.,!?;:-"


@pytest.fixture(scope="module")
def english() -> English:
    return English(read_dictionary(DICTIONARY))


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("3.14", "three point one four"),
        ("1,234 people", "one thousand two hundred thirty four people"),
        ("in 1984, 2007 and 2026", "in nineteen eighty four, two thousand seven and twenty twenty six"),
        ("$3.50", "three dollars and fifty cents"),
        ("$1", "one dollar"),
        ("€2.5 million", "two point five million euros"),
        ("May 21st", "May twenty first"),
        ("at 3:30 p.m.", "at three thirty p m"),
        ("at 9:05", "at nine oh five"),
        ("5 km and 1 kg", "five kilometers and one kilogram"),
        ("-5°C", "minus five degrees Celsius"),
        ("50%", "fifty percent"),
        ("10-20", "ten to twenty"),
        ("Dr. Smith vs. Mr. Jones", "doctor Smith versus mister Jones"),
        ("No. 7", "number seven"),
        ("call 0800", "call zero eight zero zero"),
        ("salt & pepper", "salt and pepper"),
    ],
)
def test_numbers_and_signs_become_words(text: str, spoken: str) -> None:
    assert normalize(text) == spoken


def test_cardinals_and_ordinals() -> None:
    assert [cardinal(number) for number in (0, 13, 40, 105, 1_000_001)] == [
        "zero", "thirteen", "forty", "one hundred five", "one million one",
    ]  # fmt: skip
    assert [ordinal(number) for number in (1, 12, 20, 32)] == ["first", "twelfth", "twentieth", "thirty second"]


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("The capital of Paris.", "ðə kˈæpəɾəl ʌv pˈɛɹɪs."),
        ("the apple's better!", "ðɪ ˈæpəlz bˈɛɾɚ!"),
        ("the watches", "ðə wˈɑːtʃɪz"),
        ("notebook", "nˈoʊtbˌʊk"),
        ("the GPU", "ðə dʒˈiːpˈiːjˈuː"),
        ("the U.S. is", "ðə jˈuː ˈɛs ˈɪz"),
        ("“Paris”, (note)", "pˈɛɹɪs, nˈoʊt"),
    ],
)
def test_english_phonemes(english: English, text: str, phonemes: str) -> None:
    assert english(text) == phonemes


@pytest.mark.parametrize(
    ("word", "phones"),
    [
        ("blorfing", "B L AO1 R F IH0 NG"),
        ("snazzle", "S N AE1 Z AH0 L"),
        ("zophe", "Z AA1 F"),
        ("yolation", "Y AA0 L EY1 SH AH0 N"),
    ],
)
def test_unknown_words_are_guessed_from_their_letters(word: str, phones: str) -> None:
    assert " ".join(guess_phones(word)) == phones


def test_every_word_of_letters_has_phonemes() -> None:
    for word in ("a", "rhythm", "psychology", "xylophone", "aeiou", "qqq"):
        assert all(guess_phones(word)), word


def test_ids_have_marks_and_blanks_and_long_texts_are_cut() -> None:
    table = SymbolTable({"_": [0], "^": [1], "$": [2], " ": [3], "a": [4], "ä": [5]}, blank=[0], begin=[1], end=[2])
    assert table.write("a ä?") == [Written([1, 0, 4, 0, 3, 0, 5, 0, 2], [3, 7])]
    assert table.write("aa _ a") == [Written([1, 0, 4, 0, 4, 0, 3, 0, 0, 0, 3, 0, 4, 0, 2], [5, 13])]
    assert table.write(" ?!") == []
    parts = table.write("aaaa " * 400)
    assert len(parts) > 1
    assert max(len(part.ids) for part in parts) <= MAX_IDS
    assert sum(part.ids.count(4) for part in parts) == 1600
    assert sum(len(part.word_ends) for part in parts) == 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one two", ["one", "one two"]),
        (" 27 cats, - I think.", ["", " 27", " 27 cats, -", " 27 cats, - I", " 27 cats, - I think."]),
        ("U.S. law\n", ["", "U.S.", "U.S. law"]),
        ("- a -", ["- a -"]),
    ],
)
def test_words_are_placed_in_the_spoken_text(text: str, said: list[str]) -> None:
    reader = VoiceReader(English(read_dictionary("")), SymbolTable({one: [0] for one in (" ", *IPA)}))
    assert [text[:place] for place in reader.place(text, reader.read(text))] == said


def test_a_text_that_gives_other_words_together_has_its_words_spread() -> None:
    assert place_words("a b c d", lambda word: 1, 2) == [3, 7]
    assert place_words("a b", lambda word: 2, 3) == [0, 1, 3]
    assert place_words("a b", lambda word: 0, 2) == [0, 3]
    assert place_words("", lambda word: 1, 0) == []


def test_a_package_provides_a_language(tmp_path: Path) -> None:
    plugin = EntryPoint("de", "builtins:str", "omnipipeline.phonemes")
    assert find_phonemizer("de", tmp_path, [plugin]) is str
    with pytest.raises(ConfigurationError, match="'fr', for which no package provides phonemes"):
        find_phonemizer("fr", tmp_path, [plugin])
    with pytest.raises(ConfigurationError, match=r"put cmudict\.dict next to the voice"):
        find_phonemizer("en-us", tmp_path, [])
    (tmp_path / "cmudict.dict").write_text(DICTIONARY, encoding="utf-8")
    assert find_phonemizer("en-us", tmp_path, [])("better") == "bˈɛɾɚ"
