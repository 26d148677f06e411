"""Cuts a text to speak into sentences, and into parts that a pipeline can speak one after another. Pure.

No character is lost, added or moved.

How long speech takes depends on what is written: a Chinese character is a syllable, a digit a word, a letter a tenth of
a second. Texts are therefore measured in units, of which one takes about as long as a letter of an English sentence.

A border of sentences that is missed costs little (the sentence is longer), a wrong one is audible as a pause. So a
doubtful full stop, such as the one of an abbreviation, ends a sentence only if the next word usually begins one.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

from omni_proto.abbreviations import ABBREVIATIONS, MONTHS, NUMBERED, ORDINAL_LEADS, STARTERS, TITLES

CLOSERS: Final = "\"'”’»›)]}」』）】〉》〕］｝"
"""Marks that belong to the text before them."""
STRONG: Final = "。！？｡︕︖⁇⁈⁉‽।॥؟۔។៕။።؛։܀᙮\u037e"
"""Marks of scripts in which they end a sentence with or without a space after them."""
_CANDIDATE: Final = re.compile(
    rf"(?P<strong>[{STRONG}][{STRONG}!?…]*|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)|"
    r"(?P<dots>…+|\.(?:\.|[ \u00a0]\.)+)|(?P<weak>[!?]+[.!?…]*|\.[!?]*|．)|"
    r"(?P<line>[\r\n\u2028\u2029\x0b\x0c\x85]+)"
)
_CLOSING: Final = re.compile(f"[{re.escape(CLOSERS)}]{{0,8}}")
_SPACE: Final = re.compile(r"\s*")
_PICTURES: Final = re.compile(
    "(?:[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff][\u200d\ufe0f\u20e3\U0001f3fb-\U0001f3ff]*[^\\S\\n]*)+"
)
"""Emoji, with the spaces after them. They belong to the sentence before them."""
_WORD_BEFORE: Final = re.compile(r"[^\s(\[{“„«‘\"]*\Z")
_WORD_AFTER: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_SPACED: Final = re.compile(r"(?<![^\s(\[{“„«‘\"])(?:[^\W\d_]{1,3}\.[ \u00a0]?)+[^\W\d_]{1,4}\Z")
"""The letters before a full stop and those before earlier ones: the end of an abbreviation of several words."""
_LETTER_NEXT: Final = re.compile(r"[^\W\d_]\.")
_SHORT_NEXT: Final = re.compile(r"[^\W\d_]{1,4}\.")
_LEAD: Final = re.compile(r"([^\W\d_]+)[ \u00a0]\d{1,2}\Z")
"""The word before a number."""
_ELISION: Final = re.compile(r"\A[^\W\d_]{1,5}['’]")
"""The article before a French or Italian word: l'art."""
_DATE: Final = re.compile(r"(?<!\d)\d{1,2}\.[ \u00a0]?\d{1,2}\Z")
_DATE_NEXT: Final = re.compile(r"\d{1,2}\.[ \u00a0]?\d{2,4}\b")
"""A day and its month before a full stop, and what follows the full stop of a day."""
_VOWELS: Final = frozenset(
    "aeiouyæœøıαεηιουω\u0430\u0435\u0451\u0438\u043e\u0443\u044b\u044d\u044e\u044f\u0456\u0457\u0454"
)
_LAST_EUROPEAN: Final = "\u052f"
"""The last letter of Greek and Cyrillic. Of later scripts, the vowels are not known here."""
_LETTERS: Final = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]\Z")
_LIST_MARK: Final = re.compile(r"[^\S\n]*(?:[-*•⁃–·▪◦+][^\S\n]*|#{1,6}[^\S\n]|\(?(?:\d{1,3}|[A-Za-z])[.)][^\S\n])")
_ITEM: Final = re.compile(r"(?<!\S)(?:[-*•⁃–]\s?)?(\d{1,3})(\.\)|[.)])(?=\s)")
"""The number of a list's item inside a line."""
_NUMBER_MARK: Final = re.compile(r"\s*(?:[-*•⁃–]\s*)?\(?(?:\d{1,3}|[a-zA-Z])\Z")
_CASED: Final = re.compile(r"[^\W\d_]")
_SPEECH_VERB: Final = "\u3068\u3063\u306a\u306e\u306f\u304c\u3092\u306b\u3082\u3067\u3084\u304b\u3088\u306d"
"""Kana that continue a Japanese sentence after a quotation."""


def split_sentences(text: str) -> list[str]:
    """Returns the sentences of a text, each with the spaces after it. Joined, they are the text; none is empty.

    Blank lines, items of lists and headings end a sentence too. A single line break does not: texts are wrapped.
    """
    caseless = not any(letter.isupper() for letter in text)
    borders = [0, *find_borders(text, caseless), len(text)]
    return [text[begin:end] for begin, end in pairwise(borders) if begin < end]


def find_borders(text: str, caseless: bool) -> Iterator[int]:
    """Yields where sentences begin, in order, except the first. `caseless`: whether no letter is a capital."""
    begin = 0
    items = deque(_find_items(text))
    for found in _CANDIDATE.finditer(text):
        while items and items[0] <= found.start():
            if begin < (item := items.popleft()):
                begin = item
                yield item
        if found.end() <= begin:
            continue
        kind = found.lastgroup or ""
        if kind == "line":
            end = _SPACE.match(text, found.end()).end()  # type: ignore[union-attr]  # it matches everywhere
            is_border = end < len(text) and _ends_at_line(text, begin, found.start(), found.end(), end)
        else:
            closed = _CLOSING.match(text, found.end()).end()  # type: ignore[union-attr]  # as above
            end = _skip_pictures(text, closed)
            is_border = end < len(text) and _ends_at_mark(
                text, begin, kind, found.start(), found.end(), closed, end, caseless
            )
        if end == len(text):
            break
        if is_border and begin < end:
            begin = end
            yield end
    yield from (item for item in items if item > begin)


def _find_items(text: str) -> list[int]:
    """Returns where the items after the first begin, in lists inside lines: 1. one 2. two."""
    found: list[int] = []
    due, style = 0, ""
    for mark in _ITEM.finditer(text):
        number = int(mark[1])
        if number == due and mark[2] == style:
            found.append(mark.start())
        elif not _begins_line(text, mark.start()):
            continue
        due, style = number + 1, mark[2]
    return found


def _begins_line(text: str, place: int) -> bool:
    while place and text[place - 1] in " \t":
        place -= 1
    return place == 0 or text[place - 1] == "\n"


def _skip_pictures(text: str, closed: int) -> int:
    end = _SPACE.match(text, closed).end()  # type: ignore[union-attr]  # it matches everywhere
    pictures = _PICTURES.match(text, end)
    if pictures is None:
        return end
    return _SPACE.match(text, pictures.end()).end()  # type: ignore[union-attr]  # as above


def _ends_at_line(text: str, begin: int, start: int, stop: int, end: int) -> bool:
    """Returns whether a line break ends a sentence: a blank line, the next item of a list, or the end of one."""
    breaks = text[start:end]
    if breaks.replace("\r\n", "\n").count("\n") > 1 or any(mark in breaks for mark in "\u2029\x0c"):
        return True
    line_begin = max(text.rfind("\n", 0, start) + 1, begin)
    if _LIST_MARK.match(text, stop):
        return True
    mark = _LIST_MARK.match(text, line_begin, start)
    return mark is not None and text[end : end + 1].isupper()


def _ends_at_mark(
    text: str, begin: int, kind: str, start: int, stop: int, closed: int, end: int, caseless: bool
) -> bool:
    """Returns whether a punctuation mark from start to stop ends a sentence that begins at `begin`.

    closed: end of the closing quotes and brackets after the mark; end: where the next sentence would begin.
    """
    following = text[end]
    if kind == "strong":
        return not (closed > stop and end == closed and following in _SPEECH_VERB)
    if end == closed and not (_is_wide(following) and not text[start - 1 : start].isdigit()):
        return False  # no space after it: a number, an address, the name of a file
    if following.islower() and not caseless:
        return False
    if kind == "dots" and text[start - 1 : start] in ("[", "("):
        return False  # words that a quotation leaves out
    if kind == "dots":
        return " " not in text[start:stop] or text.count(".", start, stop) > 3
    if kind == "weak" and text[start] not in ".．":
        return True
    return _ends_at_stop(text, begin, start, end)


def _ends_at_stop(text: str, begin: int, start: int, end: int) -> bool:
    """Returns whether the full stop at `start` ends a sentence; the next one would begin at `end`."""
    if _NUMBER_MARK.fullmatch(text, begin, start):
        return False  # the number of a list's item
    before = _WORD_BEFORE.search(text, max(begin, start - 40), start)
    word = before.group().rstrip(CLOSERS) if before else ""
    bare = _ELISION.sub("", word.casefold())
    after = _WORD_AFTER.match(text, end)
    next_word = after.group().casefold().replace("’", "'") if after else ""
    starts = next_word in STARTERS
    if word[-1:].isdigit():
        lead = _LEAD.search(text, max(begin, start - 40), start)
        is_ordinal = next_word in MONTHS or (lead is not None and lead[1].casefold() in ORDINAL_LEADS)
        is_date = _DATE_NEXT.match(text, end) or (
            text[end].isdigit() and _DATE.search(text, max(begin, start - 8), start)
        )
        return not (len(word) <= 2 and (is_ordinal or is_date))
    if bare in TITLES:
        return False
    short_next = _SHORT_NEXT if len(word) == 1 and word.islower() else _LETTER_NEXT
    if len(word) <= 2 and short_next.match(text, end):
        return False  # letters follow one another: J. R. R. Tolkien, z. B., U. S. A., Ph. D., v. Chr.
    if spaced := _SPACED.search(text, max(begin, start - 40), start):
        joined = re.sub(r"\s", "", spaced.group()).casefold()
        if joined in TITLES:
            return False
        if joined in ABBREVIATIONS or word[:1].islower():
            return starts
    if bare in NUMBERED and text[end].isdigit():
        return False
    if len(word) == 1 and word.isalpha() and word.isupper() and _CASED.match(word):
        return starts  # an initial
    if bare in ABBREVIATIONS or _has_no_vowel(text[max(begin, start - 40) : start], word) or _LETTERS.search(word):
        return starts
    return True


def _has_no_vowel(sentence: str, word: str) -> bool:
    """Returns whether the last word of a sentence is an abbreviation such as Hrsg or tbsp: it has no vowel, but a
    small letter. It is none if it is the only word (Hm.), or a unit after a number (5 km)."""
    if not 2 <= len(word) <= 7 or not word.isalpha() or word.isupper() or max(word) > _LAST_EUROPEAN:
        return False
    before = sentence.removesuffix(word).rstrip()
    if not before or before[-1].isdigit():
        return False
    return _VOWELS.isdisjoint(unicodedata.normalize("NFD", word.casefold()))


def is_settled(text: str, border: int) -> bool:
    """Returns whether a border stays one, whatever follows: the word after a doubtful full stop is complete."""
    before = text[:border].rstrip().rstrip(CLOSERS)
    if not before.endswith("."):
        return True
    found = _WORD_BEFORE.search(before, max(0, len(before) - 40), len(before) - 1)
    word = found.group() if found else ""
    is_known = word.casefold() in ABBREVIATIONS | NUMBERED or _has_no_vowel(before[:-1], word)
    is_plain = len(word) > 2 and word.isalpha() and not is_known and not _SPACED.search(before[-41:-1])
    after = _WORD_AFTER.match(text, border)
    return is_plain or (after is None or after.end() < len(text))


def _is_wide(letter: str) -> bool:
    """Returns whether a letter belongs to a script that is written without spaces: Chinese or Japanese."""
    return "\u3040" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or "\uf900" <= letter <= "\ufaff"


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
        if sum(map(is_spoken, pieces)) > 1:
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
            silent = bool(parts) and not (is_spoken(one) and is_spoken(parts[-1]))
            if parts and (together <= longest or (silent and together <= 2 * longest)):
                parts[-1] += one
                sizes[-1] += size
            else:
                parts.append(one)
                sizes.append(size)
    return parts


def find_clauses(text: str) -> Iterator[int]:
    """Yields where clauses begin, in order, except the first."""
    return (found.end() for found in _CLAUSE.finditer(text))


def _split_clauses(piece: str) -> Iterator[str]:
    return _cut(piece, find_clauses(piece))


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


def is_spoken(text: str) -> bool:
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
