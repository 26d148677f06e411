"""Reads xgrammar's own form of a grammar: whether texts fit it, how its counts multiply, and which parts to try.

The form is `Grammar.serialize_json` of xgrammar 0.2.8 (version v16; cpp/grammar_impl.h names the kinds of expressions).
Every form that a caller may request becomes such a grammar, so one analysis serves them all. This runs in the process
that can be killed: the work grows with the grammar.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import xgrammar as xgr

VERSION: Final = "v16"
MAX_NESTED: Final = 10_000
"""Maximum product of nested counts without a fixed text in each repetition, as in (a{0,100}){0,101}."""
MAX_COUNTED: Final = 10_000_000
"""Maximum product of nested counts, for example of maxItems and the items' maxLength."""
UNBOUNDED: Final = 100
"""What * and + count for inside another count."""
_DEEPEST: Final = 16
TRIED: Final = 4
"""Maximum number of parts of a grammar that are tried on their own."""

_BYTES, _CLASS, _STAR, _EMPTY, _RULE, _SEQUENCE, _CHOICES, _TAGS, _REPEAT = range(9)
_REGEX: Final = 12
_STRING_CHARACTERS: Final = [_CLASS, 9, 1, 34, 34, 92, 92, 13, 13, 10, 10]
"""[^"\\\\\\r\\n], which xgrammar uses for strings of limited length. It lets control characters through, which JSON
forbids."""
_STRICT_CHARACTERS: Final = [_CLASS, 9, 1, 0, 31, 34, 34, 92, 92, 92, 92]
_ESCAPED: Final = ((0, 31), (34, 34), (92, 92))
"""Ranges of the characters that a JSON string holds only escaped."""


class WrongFormError(ValueError):
    """A form cannot be used. The message says why, and what helps; it holds nothing of the form."""


class Rules:
    """The rules of a grammar."""

    def __init__(self, grammar: xgr.Grammar) -> None:
        """Read a grammar. Raises RuntimeError if xgrammar writes another format."""
        self._body: dict[str, Any] = json.loads(grammar.serialize_json())
        if self._body["__VERSION__"] != VERSION:
            raise RuntimeError(f"xgrammar writes grammars in the format {self._body['__VERSION__']}, not {VERSION}")
        self._rules: list[int] = [rule[1] for rule in self._body["rules"]]
        """The expression of each rule."""
        self._root: int = self._body["root_rule_id"]
        self._counts: dict[int, tuple[int, int]] = {}

    def check(self) -> None:
        """Raises WrongFormError if a part of the grammar fits no text, or if its counts multiply to too much."""
        reachable = self._find_reachable()
        if not reachable <= self._find_productive():
            raise WrongFormError("no text fits the form, or a part of it: a rule or $ref leads only to itself")
        nested, counted = self.count()
        if nested > MAX_NESTED or counted > MAX_COUNTED:
            most, found = (MAX_NESTED, nested) if nested > MAX_NESTED else (MAX_COUNTED, counted)
            raise WrongFormError(
                f"its nested counts ({{n,m}}, minItems, maxItems, maxLength and the like) multiply to {found}, at most "
                f"{most}; lower them, or put a fixed text between the repetitions that their characters do not hold"
            )

    def correct_strings(self) -> xgr.Grammar:
        """Returns the grammar without control characters in its JSON strings, and with rules in place of patterns."""
        data = self._body["grammar_expr_data"]
        # xgrammar 0.2.8 lets other texts through if it keeps a string's pattern as an expression: `a(bc*)?` allows ac.
        # As rules, patterns are right.
        for rule, number in enumerate(list(self._rules)):
            kind, values = self._expression(number)
            if kind == _REGEX:
                self._rules[rule] = self._body["rules"][rule][1] = self._splice(rule, bytes(values[1:]).decode())
        for start in self._body["grammar_expr_indptr"]:
            if data[start : start + len(_STRING_CHARACTERS)] == _STRING_CHARACTERS:
                data[start : start + len(_STRICT_CHARACTERS)] = _STRICT_CHARACTERS
        return self._at(self._root)

    def _splice(self, rule: int, pattern: str) -> int:
        """Add the rules of a JSON string's pattern. Returns the expression that stands for it."""
        added = json.loads(xgr.Grammar.from_regex(pattern).serialize_json())
        rules, data, starts = self._body["rules"], self._body["grammar_expr_data"], self._body["grammar_expr_indptr"]
        first_rule, first = len(rules), len(starts)
        for start in added["grammar_expr_indptr"]:
            kind, size = added["grammar_expr_data"][start : start + 2]
            values = added["grammar_expr_data"][start + 2 : start + 2 + size]
            if kind in (_CLASS, _STAR):
                values = _without_escaped(values)
            elif kind in (_SEQUENCE, _CHOICES):
                values = [value + first for value in values]
            elif kind in (_RULE, _REPEAT):
                values = [values[0] + first_rule, *values[1:]]
            starts.append(len(data))
            data += [kind, len(values), *values]
        for number, one in enumerate(added["rules"]):
            rules.append([f"{rules[rule][0]}_pattern_{number}", one[1] + first, *one[2:]])
            self._rules.append(one[1] + first)
        return int(rules[first_rule + added["root_rule_id"]][1])

    def parts(self) -> Iterator[xgr.Grammar]:
        """Yields the parts of the grammar that may be slow, each as a grammar: those that repeat something counted."""
        heavy = {rule: self._count(rule) for rule in self._find_reachable() if self._repeats(rule)}
        for rule in sorted(heavy, key=lambda rule: heavy[rule], reverse=True)[:TRIED]:
            if rule != self._root:
                yield self._at(rule)

    def _at(self, rule: int) -> xgr.Grammar:
        return xgr.Grammar.deserialize_json(json.dumps(self._body | {"root_rule_id": rule}))

    def _expression(self, number: int) -> tuple[int, list[int]]:
        """Returns an expression's kind and its values."""
        start = self._body["grammar_expr_indptr"][number]
        kind, size = self._body["grammar_expr_data"][start : start + 2]
        return kind, self._body["grammar_expr_data"][start + 2 : start + 2 + size]

    def _below(self, number: int) -> Iterator[tuple[int, list[int]]]:
        """Yields an expression and all expressions inside it, but not those of the rules that it names."""
        waiting = [number]
        while waiting:
            kind, values = self._expression(waiting.pop())
            yield kind, values
            if kind in (_SEQUENCE, _CHOICES):
                waiting.extend(values)

    def _named(self, rule: int) -> Iterator[int]:
        """Yields the rules that a rule names."""
        for kind, values in self._below(self._rules[rule]):
            if kind in (_RULE, _REPEAT):
                yield values[0]
            elif kind == _TAGS:
                yield from values[1:-2:2]

    def _find_reachable(self) -> set[int]:
        found, waiting = {self._root}, [self._root]
        while waiting:
            new = set(self._named(waiting.pop())) - found
            found |= new
            waiting.extend(new)
        return found

    def _find_productive(self) -> set[int]:
        """Returns the rules that some text fits."""
        found: set[int] = set()
        order = range(len(self._rules))
        while True:
            before = len(found)
            # Rules mostly name earlier ones, or mostly later ones.
            for rule in (*order, *reversed(order)):
                if rule not in found and self._ends(self._rules[rule], found):
                    found.add(rule)
            if len(found) == before:
                return found

    def _ends(self, number: int, productive: set[int]) -> bool:
        kind, values = self._expression(number)
        if kind == _SEQUENCE:
            return all(self._ends(inner, productive) for inner in values)
        if kind == _CHOICES:
            return any(self._ends(inner, productive) for inner in values)
        if kind == _RULE:
            return values[0] in productive
        return kind != _REPEAT or not values[1] or values[0] in productive

    def _count(self, rule: int) -> tuple[int, int]:
        """Returns the largest product of nested counts in a rule: of those without a delimiter between the repetitions,
        and of all. A rule inside itself counts once."""
        if rule not in self._counts:
            self._counts[rule] = (1, 1)
            nested, counted = 1, 1
            for kind, values in self._below(self._rules[rule]):
                if kind in (_RULE, _REPEAT):
                    loose, every = self._count(values[0])
                    if kind == _REPEAT and not self._is_delimited(values[0]):
                        loose = max(loose, self._ways(values[0]) * _times(values))
                    every *= max(1, *values[1:]) if kind == _REPEAT else 1
                else:
                    continue
                nested, counted = max(nested, loose), max(counted, every)
            self._counts[rule] = (nested, counted)
        return self._counts[rule]

    def count(self) -> tuple[int, int]:
        """Returns the largest products of nested counts in the grammar; see `_count`."""
        return self._count(self._root)

    def _ways(self, rule: int, depth: int = 0) -> int:
        """Returns in how many ways the counts of one repetition can be chosen, roughly: what is unbounded counts as
        UNBOUNDED."""
        if depth > _DEEPEST:
            return UNBOUNDED
        most = UNBOUNDED if rule in self._named(rule) else 1
        for parts in self._alternatives(rule):
            ways = 1
            for part in parts:
                kind, values = self._expression(part)
                if kind == _STAR:
                    ways *= UNBOUNDED
                elif kind == _RULE and values[0] != rule:
                    ways *= self._ways(values[0], depth + 1)
                elif kind == _REPEAT:
                    ways *= _times(values) * self._ways(values[0], depth + 1)
                if ways > MAX_COUNTED:
                    return ways
            most = max(most, ways)
        return most

    def _alternatives(self, rule: int) -> Iterator[list[int]]:
        """Yields the expressions of each alternative of a rule."""
        kind, alternatives = self._expression(self._rules[rule])
        for alternative in alternatives if kind == _CHOICES else [self._rules[rule]]:
            kind, parts = self._expression(alternative)
            yield parts if kind == _SEQUENCE else [alternative]

    def _is_delimited(self, rule: int) -> bool:
        """Returns whether each text of the rule holds a fixed text that the characters beside it cannot hold."""
        for parts in self._alternatives(rule):
            read = [self._expression(part) for part in parts]
            fixed = [values[0] for kind, values in read if kind == _BYTES and values]
            others = [values for kind, values in map(self._characters, parts) if kind in (_CLASS, _STAR)]
            if len(parts) < 2 or not any(not any(_holds(other, byte) for other in others) for byte in fixed):
                return False
        return True

    def _characters(self, number: int) -> tuple[int, list[int]]:
        """Returns an expression, or what it repeats if that is a character class."""
        kind, values = self._expression(number)
        for _ in range(3):
            if kind not in (_RULE, _REPEAT):
                break
            inner = [parts[0] for parts in self._alternatives(values[0]) if parts]
            if not inner:
                break
            kind, values = self._expression(inner[0])
        return kind, values

    def _repeats(self, rule: int) -> bool:
        return any(kind == _REPEAT and max(values[1:]) > 1 for kind, values in self._below(self._rules[rule]))


def _times(values: list[int]) -> int:
    """Returns the largest count of a repetition."""
    _, least, most = values
    return max(least, UNBOUNDED) if most < 0 else max(1, most)


def _holds(values: list[int], byte: int) -> bool:
    """Returns whether a character class holds a character."""
    inside = any(low <= byte <= high for low, high in zip(values[1::2], values[2::2], strict=True))
    return inside != bool(values[0])


def _without_escaped(values: list[int]) -> list[int]:
    """Returns a character class without the characters that a JSON string holds only escaped. Raises WrongFormError if
    it has no others."""
    negated, *bounds = values
    if negated:
        return [negated, *bounds, *itertools.chain(*_ESCAPED)]
    ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
    for least, most in _ESCAPED:
        ranges = [
            part
            for low, high in ranges
            for part in ((low, min(high, least - 1)), (max(low, most + 1), high))
            if part[0] <= part[1]
        ]
    if not ranges:
        raise WrongFormError("a pattern has characters that a JSON string holds only escaped")
    return [negated, *itertools.chain(*ranges)]
