"""Turns phonemes or characters into the ids that a voice reads, with its blanks and marks. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

_WORD: Final = re.compile(r"\S+")


def place_words(text: str, count: Callable[[str], int], spoken: int) -> list[int]:
    """Returns, for each spoken word, how many characters of the text have been said at its end.

    A voice speaks other words than are written: 27 is two words, a dash is none. count: returns how many spoken words a
    written word gives alone. spoken: number of spoken words of the text. A written word has been said once all its
    spoken words have been. In a few texts a word gives another number beside its neighbours; the places of the words
    are then spread over the text.
    """
    words = list(_WORD.finditer(text))
    counts = list(accumulate(count(word[0]) for word in words))
    if not words or not counts[-1]:
        return [0] * (spoken - 1) + [len(text)] * min(1, spoken)
    found, said, place = [], 0, 0
    for number in range(1, spoken + 1):
        while place < len(words) and counts[place] * spoken <= number * counts[-1]:
            said = words[place].end()
            place += 1
        found.append(said)
    return found


MAX_IDS: Final = 1024
"""Ids of one utterance: about half a minute. Longer sentences are cut at a space, so that a step stays short."""


@dataclass(frozen=True, slots=True)
class Written:
    """An utterance as the voice reads it."""

    ids: list[int]
    word_ends: list[int]
    """For each word, the number of ids up to its last symbol's."""


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """How a voice's checkpoint writes utterances."""

    ids: Mapping[str, Sequence[int]]
    """Ids of every symbol that the voice knows. A symbol is one or several characters."""
    blank: Sequence[int] = ()
    """Ids between symbols."""
    begin: Sequence[int] = ()
    end: Sequence[int] = ()
    """Ids after the last symbol and its blank."""
    blank_first: bool = False
    """Whether a blank precedes the first symbol although nothing else does."""
    decomposed: bool = False
    """Whether symbols are decomposed characters: a letter, then its accents."""
    _longest: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        """Note the length of the longest symbol."""
        object.__setattr__(self, "_longest", max(map(len, self.ids), default=1))

    def write(self, text: str) -> list[Written]:
        """Returns the utterances that say the text; none if it has no symbol that the voice knows."""
        symbols = [
            symbol
            for symbol in self._cut(unicodedata.normalize("NFD" if self.decomposed else "NFC", text))
            if symbol in self.ids
        ]
        if not any(symbol.strip() and _is_spoken(symbol) for symbol in symbols):
            return []
        per_symbol = 1 + len(self.blank)
        return [self._write(part) for part in _split(symbols, max(8, MAX_IDS // per_symbol - 4))]

    def _write(self, symbols: Sequence[str]) -> Written:
        written = [*self.begin, *(self.blank if self.begin or self.blank_first else ())]
        ends: list[int] = []
        in_word = False
        for symbol in symbols:
            written += self.ids[symbol]
            if symbol.isspace():
                in_word = False
            elif _is_spoken(symbol):
                if not in_word:
                    ends.append(0)
                ends[-1] = len(written)
                in_word = True
            written += self.blank
        return Written([*written, *self.end], ends)

    def _cut(self, text: str) -> Iterator[str]:
        """Yields the longest known symbols, and characters that are unknown."""
        place = 0
        while place < len(text):
            for size in range(min(self._longest, len(text) - place), 0, -1):
                if size == 1 or text[place : place + size] in self.ids:
                    yield text[place : place + size]
                    place += size
                    break


@dataclass(frozen=True, slots=True)
class VoiceReader:
    """Turns a sentence into utterances."""

    to_symbols: Callable[[str], str]
    table: SymbolTable

    def read(self, sentence: str) -> list[Written]:
        """Returns the utterances of the sentence; none if there is nothing to say."""
        symbols = self.to_symbols(sentence).strip()
        return self.table.write(symbols) if symbols else []

    def place(self, sentence: str, utterances: Sequence[Written]) -> list[int]:
        """Returns, for each word of a sentence's utterances, how many characters have been said at its end."""
        return place_words(sentence, self._count, sum(len(one.word_ends) for one in utterances))

    def _count(self, word: str) -> int:
        return sum(len(one.word_ends) for one in self.read(word))


def _is_spoken(symbol: str) -> bool:
    return any(unicodedata.category(character)[0] in "LN" for character in symbol)


def _split(symbols: Sequence[str], maximum: int) -> Iterator[Sequence[str]]:
    """Yields parts of at most `maximum` symbols, cut after a mark or a space if there is one in the second half."""
    begin = 0
    while len(symbols) - begin > maximum:
        window = range(begin + maximum - 1, begin + maximum // 2, -1)
        end = next((index for index in window if symbols[index] in ",;:"), None)
        if end is None:
            end = next((index for index in window if symbols[index] == " "), begin + maximum - 1)
        yield symbols[begin : end + 1]
        begin = end + 1
    yield symbols[begin:]
