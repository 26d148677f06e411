"""The table of `make mutations` fits the current code: each text that it replaces occurs exactly once in its file."""

from __future__ import annotations

import ast

import pytest
from checks.mutation.table import ROOT, Mutation, StaleMutationError, read_table

from support.tables import each_row

TABLE = read_table()


def test_thirty_behaviours_with_names_of_their_own() -> None:
    assert len({mutation.name for mutation in TABLE}) == len(TABLE) >= 30


@each_row("mutation", TABLE, ids=[mutation.name for mutation in TABLE])
def test_a_mutation_changes_code_that_is_there(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text(encoding="utf-8")
    broken = mutation.apply(source)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
    assert all((ROOT / path).exists() for path in mutation.tests)


def test_code_that_has_moved_on_is_named() -> None:
    gone = Mutation("a name", "a/file.py", "no such text", "", ())
    with pytest.raises(StaleMutationError, match=r"a name: 'no such text' is 0 times in a/file\.py"):
        gone.apply("x = 1\n")
