"""`make lint`: finds words that tools/words.toml forbids in prose, and prints the words to use instead.

    files -> prose without code -> findings, one per line: FILE:LINE: "word": use ...

It checks the text of Markdown outside of code, comments of Python, YAML and protobuf, and strings of Python.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).with_name("words.toml")
CODE_SPAN = re.compile(r"`[^`]*`")
LINK_TARGET = re.compile(r"\]\([^)]*\)")
NAME_LIKE = re.compile(r"[\w./*-]*[_/][\w./*-]*|\w+\(\)")
"""Paths, identifiers and calls: names of things, not words about them."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A word to avoid, and what to write instead."""

    pattern: re.Pattern[str]
    use: str
    allow: frozenset[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a file with a word to avoid."""

    path: str
    line: int
    word: str
    use: str

    def __str__(self) -> str:
        """Returns the line that lint prints."""
        return f'{self.path}:{self.line}: "{self.word}": use {self.use}'


def read_rules(text: str) -> tuple[list[str], list[Rule]]:
    """Returns the globs of the files to check, and the rules. Raises KeyError, re.error or tomllib.TOMLDecodeError."""
    document = tomllib.loads(text)
    allowed = document["allow"]
    rules = [
        Rule(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), use, frozenset(f for f in allowed if word in allowed[f]))
        for word, use in document["words"].items()
    ]
    return document["files"]["check"], rules


def prose_of(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, prose) of a file. The file's suffix decides what counts as prose."""
    if name.endswith(".md"):
        yield from markdown_prose(text)
    elif name.endswith(".py"):
        yield from python_prose(text)
    else:
        mark = "//" if name.endswith(".proto") else "#"
        for number, line in enumerate(text.splitlines(), 1):
            yield number, line.partition(mark)[2]


def markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, line) for the lines outside of fenced code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, line) for comments and for string literals of more than one word."""
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string.strip()):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


IDENTIFIER_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def name_identifiers(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, name) for what a Python file defines: classes, functions, parameters and variables."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def find_identifiers(path: str, text: str, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the words to avoid in a Python file's path, and in the names that it defines, in the order of lines."""
    names = [(1, part) for part in path.removesuffix(".py").split("/")]
    found = set()
    for line, name in (*names, *name_identifiers(text)):
        words = " ".join(IDENTIFIER_PART.findall(name))
        for rule in rules:
            if path not in rule.allow and (match := rule.pattern.search(words)):
                found.add(Finding(path, line, f"{match[0]} ({name})", rule.use))
    return sorted(found, key=lambda finding: (finding.line, finding.word))


def find_words(name: str, text: str, rules: Sequence[Rule]) -> list[Finding]:
    """Returns the words to avoid in a file, in the order of its lines."""
    found = []
    for number, line in prose_of(name, text):
        plain = NAME_LIKE.sub(" ", LINK_TARGET.sub("]", CODE_SPAN.sub(" ", line)))
        for rule in rules:
            if name not in rule.allow:
                found += [Finding(name, number, match[0], rule.use) for match in rule.pattern.finditer(plain)]
    return found


def main() -> int:
    """Print every finding. Returns 1 if there is one, else 0."""
    globs, rules = read_rules(WORDS.read_text(encoding="utf-8"))
    paths = sorted({path for glob in globs for path in ROOT.glob(glob)})
    found = [
        finding
        for path in paths
        for finding in find_words(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"), rules)
    ]
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
