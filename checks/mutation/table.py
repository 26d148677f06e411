"""The table of mutations: each changes one place in one file, and names the tests that must then fail.

The tests are whole folders, those that mirror the changed module. So no test is chosen because it is known to fail.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutations.toml")


class StaleMutationError(ValueError):
    """The text to change is not in its file exactly once. The code has changed, so the table must be updated."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One way to break one behaviour."""

    name: str
    file: str
    """Path from the repository's root."""
    before: str
    after: str
    tests: tuple[str, ...]
    """Paths from the repository's root."""

    def apply(self, source: str) -> str:
        """Returns the file's text with the mutation applied. Raises StaleMutationError."""
        count = source.count(self.before)
        if count != 1:
            raise StaleMutationError(f"{self.name}: {self.before!r} is {count} times in {self.file}, not once")
        return source.replace(self.before, self.after)


def read_table(table: Path = TABLE) -> list[Mutation]:
    """Returns the mutations in the order of the table."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(row["name"], row["file"], row["before"], row["after"], tuple(row["tests"])) for row in rows]
