"""Cuts a text that is still being written into parts to speak, each as early as possible. Pure.

An LLM writes Markdown, code and emoji, token by token. SpokenText drops what nobody reads aloud. SentenceCutter cuts
the rest into sentences, by the rules of omni_proto.text, and the first sentence after its first clause.

    cutter = SentenceCutter()
    for piece in pieces:
        for part in cutter.add(piece):
            speak(part)
    for part in cutter.end():
        speak(part)

The parts do not depend on where the pieces begin and end, unless the listener runs dry and `cut_early` is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from omni_proto.text import LONGEST_UNITS, find_borders, find_clauses, is_settled, is_spoken, measure, split_parts

FIRST_UNITS: Final = 20
"""Least units of a first clause that is spoken before its sentence is complete: about a second and a half."""
_PICTURE: Final = "\u2600-\u27bf\u2b00-\u2bff\ufe0f\u20e3\U0001f000-\U0001faff"
_FENCE: Final = re.compile(r"(?<=\n)[ \t]*(?P<fence>```+|~~~+)[^\n]*(?:\n|\Z)")
_TOKEN: Final = re.compile(
    rf"(?P<fence>{_FENCE.pattern.replace('?P<fence>', '?:')})|"
    r"(?P<rule>(?<=\n)[ \t]*(?:(?:[-*_=][ \t]*){3,}|\|?[ \t]*:?-{2,}[-:| \t]*)(?=\n|\Z))|"
    r"(?P<begin>(?<=\n)[ \t]*(?:>[ \t]?)*(?P<mark>#{1,6}[ \t]+|[-+*•–▪◦][ \t]+(?:\[[ xX]\][ \t]+)?))|"
    r"(?P<quote>(?<=\n)[ \t]*(?:>[ \t]?)+)|"
    r"(?P<link>!?\[(?P<shown>[^\]\n]{0,200})\]\([^)\n]{0,500}\))|"
    r"(?P<note>\[\^?\d{1,3}\])|"
    r"(?P<url>(?:https?://|www\.)(?P<host>[^\s<>/?#]+)[^\s<>]*?(?=[.,;:!?)\]}'\"]*(?:[\s<>]|\Z)))|"
    r"(?P<tag></?[A-Za-z][^<>\n]{0,100}>)|"
    r"(?P<star>\*+)|(?P<line>_+)|(?P<tilde>~~+)|(?P<tick>`+)|(?P<cell>[ \t]*\|[ \t]*)|(?P<end>\n)|"
    rf"(?P<picture>[ \t]*[{_PICTURE}][{_PICTURE}\u200d \t]*)"
)
_TRAILING: Final = re.compile(rf"[\s*_~`|\u200d{_PICTURE}]")
_UNSETTLED: Final = re.compile(
    r"(?<=\n)[ \t]*(?:[-+*•–▪◦#>=:~`| \t]+|[-+*•–▪◦][ \t]+\[[ xX]?\]?[ \t]*|(?:```|~~~)[^\n]*)\Z|"
    r"!?\[[^\]\n]{0,200}(?:\](?:\([^)\n]{0,500})?)?\Z|!\Z|"
    r"(?<!\]\()(?:https?://|www\.)\S*\Z|\b(?:h|ht|htt|https?|https?:/?|w|ww|www)\Z|"
    r"<(?:/?[A-Za-z][^<>\n]{0,100}|/)?\Z"
)
"""The end of a text whose meaning may change when more text follows."""
_MAX_HELD: Final = 1000
"""Most letters that wait for what follows."""
_EMPHASIS: Final = re.compile(r"[*`]|(?<!\w)_+|_+(?!\w)")


class SpokenText:
    """Drops what is not read aloud from a text in Markdown, which arrives in pieces.

    Dropped: marks of headings, lists, quotes, tables and emphasis; code blocks; the addresses of links and images, HTML
    tags, numbers of footnotes, emoji. Code inside a line is read, and so is the host of a bare address. A heading, a
    list's item and a table's row end with a blank line, so that each is a sentence of its own.
    """

    def __init__(self) -> None:
        self._held = ""
        """Text whose meaning depends on what follows."""
        self._before = "\n"
        """The last letter that was processed."""
        self._fence = ""
        """The mark that ends the code block; empty outside of code."""
        self._is_marked = False
        """Whether the line is a heading, a list's item or a row of a table."""
        self._is_rule = False
        """Whether the line is a rule, or the line below a table's head."""

    def add(self, piece: str) -> str:
        """Returns the text to read aloud, as far as it is certain."""
        return self._take(self._held + piece.replace("\r\n", "\n"), ended=False)

    def end(self) -> str:
        """Returns the rest of the text to read aloud."""
        return self._take(self._held, ended=True)

    def _take(self, raw: str, *, ended: bool) -> str:
        read = ""
        rest: str | None = raw
        while rest is not None:
            part, rest = self._take_prose(rest, ended=ended)
            read += part
        return read

    def _take_prose(self, raw: str, *, ended: bool) -> tuple[str, str | None]:
        """Returns what is read aloud up to the next code block, and what follows the block's mark; None without one."""
        read = ""
        if self._fence and not (raw := self._skip_code(raw, ended=ended)):
            return read, None
        text = self._before + raw
        place = 1
        limit = len(text) if ended else _find_settled(text)
        while place < limit:
            found = _TOKEN.search(text, place, limit)
            if found is None:
                read += text[place:limit]
                place = limit
                break
            read += text[place : found.start()]
            place = found.end()
            if found["fence"] is not None:
                self._fence = found["fence"].strip()[0] * 3
                self._before = "\n"
                return read + "\n\n", text[place:]
            read += self._speak(found, text)
        self._before, self._held = text[place - 1], text[place:]
        return read, None

    def _skip_code(self, raw: str, *, ended: bool) -> str:
        """Returns what follows the code block; empty if its end has not arrived."""
        self._held = ""
        text = "\n" + raw if self._before == "\n" else self._before + raw
        for found in _FENCE.finditer(text):
            line = found.group()
            if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                if not line.endswith("\n") and not ended:
                    break
                self._fence, self._before = "", "\n"
                return text[found.end() :]
        begin = text.rfind("\n") + 1
        self._held, self._before = text[begin:], "\n" if begin else self._before
        return ""

    def _speak(self, found: re.Match[str], text: str) -> str:
        """Returns what is read aloud for a mark."""
        kind = next(name for name, value in found.groupdict().items() if value is not None)
        before, after = text[found.start() - 1], text[found.end() : found.end() + 1]
        if kind == "begin":
            self._is_marked = found["mark"] is not None
            return "\n" if self._is_marked else ""
        if kind == "end":
            was_marked, self._is_marked = self._is_marked, False
            was_rule, self._is_rule = self._is_rule, False
            if was_rule:
                return ""
            return "\n\n" if was_marked else "\n"
        if kind == "rule":
            self._is_rule = True
            return "" if "|" in found["rule"] else "\n"
        if kind == "link":
            return _EMPHASIS.sub("", found["shown"])
        if kind == "url":
            return found["host"].removeprefix("www.")
        if kind == "tag":
            return "\n" if found["tag"].lower().startswith(("<br", "</p", "</li")) else ""
        if kind == "star":
            is_times = (before.isspace() and after.isspace()) or (before.isdigit() and after.isdigit())
            if is_times and len(found["star"]) == 1:
                return found["star"]
        if kind in ("star", "line"):
            return " " if before.isalnum() and after.isalnum() else ""
        if kind == "cell":
            self._is_marked = self._is_marked or before == "\n"
            return "" if before == "\n" or after in ("", "\n") else ", "
        if kind == "picture":
            return " " if " " in found["picture"] and after.isalnum() and not before.isspace() else ""
        return ""


def _find_settled(text: str) -> int:
    """Returns up to where the meaning of a text is certain, whatever follows."""
    limit, first = len(text), max(1, len(text) - _MAX_HELD)
    while limit > first and _TRAILING.match(text, limit - 1):
        limit -= 1
    # A complete line is certain, whatever it ends with.
    line = text.find("\n", limit)
    limit = limit if line < 0 else line
    unsettled = _UNSETTLED.search(text, first)
    limit = limit if unsettled is None else min(limit, unsettled.start())
    return limit if limit > first or first == 1 else len(text)


def find_clause(text: str, most_units: float) -> int | None:
    """Returns where to cut a text of which no more than `most_units` can be spoken in time: after its last clause that
    ends before them, else after the first one of FIRST_UNITS; None if neither is there."""
    found = None
    for clause in find_clauses(text):
        units = measure(text[:clause])
        if units < FIRST_UNITS:
            continue
        if found is not None and units > most_units:
            break
        found = clause
    return found


class SentenceCutter:
    """Cuts one text into parts to speak. Joined, they are the text that is read aloud, without what is silent."""

    def __init__(self, *, first_units: int = FIRST_UNITS, longest: int = LONGEST_UNITS) -> None:
        """`first_units`: least units of the first part, which may end after a clause; 0: it ends as the others do.

        `longest`: most units of a part. A longer sentence is cut after a clause, or between words.
        """
        self._spoken = SpokenText()
        self._text = ""
        self._first_units = first_units
        self._longest = longest
        self._is_caseless = True

    def add(self, piece: str) -> list[str]:
        """Returns the parts that are complete, each with the spaces after it (for omni_proto.text.pause_after)."""
        self._append(self._spoken.add(piece))
        return [*self._cut(ended=False)]

    def cut_early(self, most_units: float) -> list[str]:
        """Returns the complete clauses of an incomplete sentence, of at most about `most_units`; see find_clause.

        Call it when nothing else is left to speak. The parts then depend on when it is called.
        """
        border = next(find_borders(self._text, self._is_caseless), len(self._text))
        clause = find_clause(self._text[:border], most_units)
        if clause is None:
            return []
        part, self._text = self._text[:clause], self._text[clause:]
        return [*self._limit(part)]

    def end(self) -> list[str]:
        """Returns the last parts. No piece may follow."""
        self._append(self._spoken.end())
        return [*self._cut(ended=True)]

    def _append(self, text: str) -> None:
        self._text += text
        self._is_caseless = self._is_caseless and not any(letter.isupper() for letter in text)

    def _cut(self, *, ended: bool) -> Iterator[str]:
        while (end := self._find_end(ended=ended)) is not None:
            sentence, self._text = self._text[:end], self._text[end:]
            yield from self._limit(sentence)
        if ended:
            rest, self._text = self._text, ""
            yield from self._limit(rest)
        elif measure(self._text) > self._longest:
            *parts, self._text = split_parts(self._text, self._longest)
            for part in parts:
                yield from self._limit(part)

    def _find_end(self, *, ended: bool) -> int | None:
        """Returns where the first part of the text ends; None if that is not known yet."""
        border = next(find_borders(self._text, self._is_caseless), None)
        if self._first_units:
            for clause in find_clauses(self._text):
                if clause >= (len(self._text) if border is None else border):
                    break
                if measure(self._text[:clause]) >= self._first_units:
                    return clause
        return border if border is not None and (ended or is_settled(self._text, border)) else None

    def _limit(self, sentence: str) -> Iterator[str]:
        for part in split_parts(sentence, self._longest):
            if is_spoken(part):
                self._first_units = 0
                yield part.lstrip()
