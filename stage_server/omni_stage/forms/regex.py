"""Checks that a regular expression holds only what xgrammar enforces. Pure.

xgrammar 0.2.8 ignores anchors inside an expression, and in a JSON Schema's `pattern` also lookaheads and flags. It
takes escapes that it does not know for the letter itself (`\\A`). So this module reads the expression with a grammar of
its own, and refuses everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MAX_GROUPS: Final = 64
"""Maximum depth of groups: the parser is recursive."""
_ESCAPES: Final = re.compile(
    r"\\(?:[dDwWsStnrfv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|[!-/:-@\[-`{-~])"
)
_COUNT: Final = re.compile(r"\{(\d{1,7})(?:(,)(\d{1,7})?)?\}")
_GROUP: Final = re.compile(r"\((?!\?)|\(\?:|\(\?<[A-Za-z_]\w{0,31}>", re.ASCII)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_SETS: Final = "dDwWsS"
_ANY_SPACE: Final = r"\u0000- \u0085\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_WRITTEN: Final = {
    ".": r"[^\n\r]",
    r"\s": r"[\t\n\v\f\r \u00a0]",
    r"\S": f"[^{_ANY_SPACE}]",
    r"\W": r"[\u0001-/:-@\[-^`{-\u007f]",
}
"""How xgrammar gets what Python, ECMAScript and xgrammar read differently: as what all of them match."""
_WRITTEN_OUT: Final = {r"\s": _ANY_SPACE, r"\w": r"\w\u0080-\u{10ffff}"}
"""The same inside a class of the characters that do not match."""
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7f]")
"""Characters that a string's pattern must hold as escapes: with them, xgrammar makes other rules of it, and they would
let quotes through (forms/grammar.py, `correct_strings`)."""


class UnsupportedRegexError(ValueError):
    """The expression is invalid, or uses something that is not enforced. The message says what, without its text."""


def check_regex(text: str, *, in_json: bool) -> str:
    """Returns the expression as xgrammar must get it: the whole text has to match it.

    `in_json`: it is the pattern of a JSON string, which holds quotes, backslashes and control characters only escaped.
    Raises UnsupportedRegexError.
    """
    read = "".join(_Parser(text, in_json=in_json).parse())
    return _BEYOND_ASCII.sub(lambda char: f"\\u{{{ord(char[0]):x}}}", read) if in_json else read


class _Parser:
    """Reads an expression from left to right, and yields it piece by piece."""

    def __init__(self, text: str, *, in_json: bool) -> None:
        self._text = text
        self._at = 0
        self._in_json = in_json

    def parse(self) -> Iterator[str]:
        yield from self._choices(depth=0)
        if self._at < len(self._text):
            raise self._error("a closing parenthesis without an opening one")

    def _choices(self, depth: int) -> Iterator[str]:
        if depth > MAX_GROUPS:
            raise self._error(f"more than {MAX_GROUPS} groups inside each other")
        begins = True
        while (char := self._peek()) and char != ")":
            if char == "|":
                self._at += 1
                begins = True
                yield char
                continue
            if char in "^$":
                self._anchor(char, depth=depth, begins=begins)
            else:
                yield from self._atom(char, depth)
                yield self._quantifier()
            begins = False

    def _anchor(self, char: str, *, depth: int, begins: bool) -> None:
        """Skip an anchor at the start or end of an alternative: the whole text has to match in any case."""
        self._at += 1
        ends = self._peek() in ("", "|")
        if depth or not (begins if char == "^" else ends):
            raise self._error(f'"{char}" inside the expression; it may only be at its start or end')

    def _atom(self, char: str, depth: int) -> Iterator[str]:
        if char == "(":
            group = _GROUP.match(self._text, self._at)
            if group is None:
                raise self._error("a group that begins with (?, such as a lookahead, a lookbehind or a flag")
            self._at = group.end()
            yield "(?:"
            yield from self._choices(depth + 1)
            if self._peek() != ")":
                raise self._error("a group that is not closed")
            self._at += 1
            yield ")"
        elif char == "[":
            yield self._class()
        elif char == ".":
            self._at += 1
            yield _WRITTEN[char]
        elif char == "\\":
            start = self._at
            self._check_literal(self._escape())
            found = self._text[start : self._at]
            yield _WRITTEN.get(found, found)
        elif char in "?*+{}]":
            raise self._error(f'"{char}" that repeats or closes nothing; write \\{char} for the character')
        else:
            self._at += 1
            self._check_literal(char)
            yield char

    def _quantifier(self) -> str:
        start, char = self._at, self._peek()
        if char and char in "?*+":
            self._at += 1
        elif char == "{":
            count = _COUNT.match(self._text, self._at)
            if count is None:
                raise self._error("a count that is not {n}, {n,} or {n,m}")
            self._at = count.end()
            if count[3] is not None and int(count[3]) < int(count[1]):
                raise self._error("a count whose maximum is below its minimum")
        else:
            return ""
        found = self._text[start : self._at]
        # A lazy quantifier matches the same texts.
        self._at += self._peek() == "?"
        following = self._peek()
        if following and following in "?*+{":
            raise self._error("a quantifier after a quantifier")
        return found

    def _class(self) -> str:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        pieces = []
        while self._peek() != "]":
            start = self._at
            low = self._class_char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._class_char()
                if not low or not high or high < low:
                    raise self._error("a range of characters that is empty or not between two characters")
                low = low if low == high else ""
            if low and not negated:
                self._check_literal(low)
            piece = self._text[start : self._at]
            pieces.append(_WRITTEN_OUT.get(piece, piece) if negated else piece)
        if not pieces:
            raise self._error("a character class without characters")
        self._at += 1
        return f"[{'^' * negated}{''.join(pieces)}]"

    def _class_char(self) -> str:
        """Returns the next character of a class; empty for a set of characters such as \\d."""
        char = self._peek()
        if not char:
            raise self._error("a character class that is not closed")
        if char == "\\":
            found = self._escape()
            if not found and self._text[self._at - 1] in "DWS":
                raise self._error("\\D, \\W or \\S inside a character class")
            return found
        if char == "[":
            raise self._error("[ inside a character class; write \\[ for the character")
        self._at += 1
        return char

    def _escape(self) -> str:
        """Returns the character that the escape stands for; empty for a set of characters."""
        found = _ESCAPES.match(self._text, self._at)
        if found is None:
            raise self._error("an escape that is not enforced, such as \\b, \\p or a backreference")
        self._at = found.end()
        name = found[0][1:]
        if name[0] in _SETS:
            return ""
        if name[0] in _CONTROLS:
            return _CONTROLS[name[0]]
        if name[0] in "xu" and len(name) > 1:
            code = int(name[1:].strip("{}"), 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000 or code == 0:
                raise self._error("an escape of something that is not a character")
            return chr(code)
        return name

    def _check_literal(self, char: str) -> None:
        if char == "\0" or "\ud800" <= char < "\ue000":
            raise self._error("a NUL character or half of a surrogate pair")
        if self._in_json and char and (char in '"\\' or char < " "):
            raise self._error("a quote, a backslash or a control character, which a JSON string holds only escaped")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, what: str) -> UnsupportedRegexError:
        return UnsupportedRegexError(f"it has {what} (at character {self._at + 1})")
