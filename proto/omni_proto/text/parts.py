"""Cuts a text to speak into parts that a pipeline can speak one after another. Pure.

How long speech takes depends on what is written: a Chinese character is a syllable, a digit a word, a letter a tenth of
a second. Texts are therefore measured in units, of which one takes about as long as a letter of an English sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

from omni_proto.text.sentences import CLOSERS, STRONG, split_sentences

LONGEST_UNITS: Final = 400
"""Most units of one part: about half a minute. Qwen2.5-Omni's default limit is 82 s of speech."""
_TOKENS_PER_UNIT: Final = 4
"""More codec tokens than a unit needs: the published talkers need about 3.3 (50 tokens a second) and 0.8."""
SHORTEST_UNITS: Final = 12
"""A part of a word or two, which is made no shorter."""
_TRIED_UNITS: Final = 80
"""With a low limit a part may have this many units, though they may need more tokens than there are."""
_CLAUSE: Final = re.compile(r"[,;:]\s+|[，、；：،؛]\s*|(?<!\s)\s+[–—-]+\s+|[—]|[)\]}）】」』]\s+")
_WORD: Final = re.compile(r"\s+")
_SIGNS: Final = frozenset("%&@#*/\\")
"""Marks whose names are spoken."""
_SPOKEN: Final = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Sc", "Sm", "So"))
_JOINS: Final = frozenset("\u200d\u200c\ufe0e\ufe0f")
_REGIONAL: Final = ("\U0001f1e6", "\U0001f1ff")
_SKIN: Final = ("\U0001f3fb", "\U0001f3ff")
_NEVER_FIRST: Final = frozenset(
    f"{CLOSERS}{STRONG},;:.!?…，、；：،؛\u3005\u30fc\u3041\u3043\u3045\u3047\u3049\u3063\u3083\u3085\u3087\u308e\u30a1\u30a3\u30a5\u30a7\u30a9\u30c3\u30e3\u30e5\u30e7\u30ee"
)
"""Marks that may not begin a part, if there is another place."""
_ENDINGS: Final = frozenset(f".!?…{STRONG}")
_PARAGRAPH_S: Final = 0.4
_SENTENCE_S: Final = 0.2
_CLAUSE_S: Final = 0.06


_Split = Callable[[str], Iterator[str]]


def units_for(max_tokens: int) -> int:
    """Returns how many units a part may have if the stages that speak make at most max_tokens tokens; 0: unknown.

    Below LONGEST_UNITS, a part may still turn out to be too long, but then it is only a few seconds of speech.
    """
    if not max_tokens:
        return LONGEST_UNITS
    return min(LONGEST_UNITS, max(SHORTEST_UNITS, min(max_tokens, _TRIED_UNITS), max_tokens // _TOKENS_PER_UNIT))


def measure(text: str) -> int:
    """Returns how long a text takes to speak, in units."""
    return sum(map(_measure_letter, text))


def split_parts(text: str, longest: int = LONGEST_UNITS) -> list[str]:
    """Returns the text in parts of at most `longest` units, cut between sentences where possible.

    Joined, the parts are the text; none is empty. A sentence that is too long is cut after a clause, else between
    words, else between letters. A part may be longer only by marks that are not spoken.
    """
    return _pack(split_sentences(text), longest, (_split_clauses, _split_words, _split_letters))


def split_further(part: str) -> list[str]:
    """Returns a part that was too long for the pipeline in two or more parts; only itself if it is one short word."""
    half = (measure(part) + 1) // 2
    for split in (split_sentences, _split_clauses, _split_words, _split_letters):
        pieces = list(split(part))
        if split is _split_letters and half * 2 <= SHORTEST_UNITS:
            break
        if sum(map(_is_spoken, pieces)) > 1:
            return _pack(pieces, max(half, *map(measure, pieces)), ())
    return [part]


def pause_after(part: str) -> float:
    """Returns the seconds of silence between a part and the next one: a paragraph, a sentence, or less."""
    text = part.rstrip()
    if part[len(text) :].count("\n") > 1:
        return _PARAGRAPH_S
    return _SENTENCE_S if text.rstrip(CLOSERS)[-1:] in _ENDINGS else _CLAUSE_S


def _pack(pieces: Sequence[str], longest: int, finer: Sequence[_Split]) -> list[str]:
    """Joins pieces to parts of at most `longest` units. Cuts those that are longer by the first of `finer`."""
    parts: list[str] = []
    sizes: list[int] = []
    for piece in pieces:
        size = measure(piece)
        if size > longest and finer:
            split, *rest = finer
            cut = _pack(list(split(piece)), longest, rest)
        else:
            cut = [piece]
        for one in cut:
            size = measure(one)
            together = sizes[-1] + size if sizes else 0
            silent = bool(parts) and not (_is_spoken(one) and _is_spoken(parts[-1]))
            if parts and (together <= longest or (silent and together <= 2 * longest)):
                parts[-1] += one
                sizes[-1] += size
            else:
                parts.append(one)
                sizes.append(size)
    return parts


def _split_clauses(piece: str) -> Iterator[str]:
    return _cut(piece, (found.end() for found in _CLAUSE.finditer(piece)))


def _split_words(piece: str) -> Iterator[str]:
    return _cut(piece, (found.end() for found in _WORD.finditer(piece)))


def _split_letters(piece: str) -> Iterator[str]:
    return _cut(piece, _list_letters(piece))


def _list_letters(text: str) -> Iterator[int]:
    """Yields where text may be cut: not inside what a reader sees as one character."""
    flag = _is_regional(text[0])
    for place in range(1, len(text)):
        # Two regional indicators are one flag.
        flag = _is_regional(text[place]) and not (flag and _is_regional(text[place - 1]))
        second = _is_regional(text[place]) and not flag
        if not second and _may_cut(text[place - 1], text[place]):
            yield place


def _is_regional(letter: str) -> bool:
    return _REGIONAL[0] <= letter <= _REGIONAL[1]


def _cut(piece: str, places: Iterator[int]) -> Iterator[str]:
    begin = 0
    for place in places:
        if begin < place:
            yield piece[begin:place]
        begin = place
    if begin < len(piece):
        yield piece[begin:]


def _may_cut(before: str, after: str) -> bool:
    if after in _NEVER_FIRST or after in _JOINS or before == "\u200d" or (before, after) == ("\r", "\n"):
        return False
    if unicodedata.category(after)[0] == "M" or _SKIN[0] <= after <= _SKIN[1]:
        return False
    return not ("\u1100" <= before <= "\u11ff" and "\u1160" <= after <= "\u11ff")  # parts of a Korean syllable


def _is_spoken(text: str) -> bool:
    """Returns whether a text holds anything that can be spoken."""
    return any(unicodedata.category(letter) in _SPOKEN for letter in text)


@cache
def _measure_letter(letter: str) -> int:
    category = unicodedata.category(letter)
    if category[0] == "N":
        return 4
    if category[0] == "S" or letter in _SIGNS:
        return 6
    if category[0] == "L":
        if unicodedata.east_asian_width(letter) in "WF":
            return 4
        if letter.isupper():
            return 2
        return 1 if letter < "\u0250" else 2
    return 2 if category[0] == "P" else 1
