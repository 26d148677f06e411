"""Every test file runs in exactly one group."""

from __future__ import annotations

from collections import Counter

import pytest

from runner.__main__ import FOLDERS, ROOT, find_test_files
from runner.groups import RULES, Rule, UngroupedTestError, list_groups

# Folders whose tests run on a real node (make e2e), and folders without test files, such as fuzz and soak.
NOT_RUN_HERE = {"cluster", "data", "fuzz", "golden", "mutation", "oracle", "runner", "soak", "support"}


def test_every_test_file_is_in_one_group() -> None:
    files = find_test_files()
    grouped = Counter(file for group in list_groups(files) for file in group.files)
    assert grouped == Counter(files)
    assert len(files) > 100


def test_every_folder_of_tests_is_known() -> None:
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
    }
    assert folders <= {*FOLDERS, *NOT_RUN_HERE}, "tests in a new folder would never run: add it to FOLDERS"


def test_every_rule_has_files() -> None:
    names = [group.name for group in list_groups(find_test_files())]
    assert sorted(names) == sorted(rule.name for rule in RULES)


def test_first_rule_wins_and_files_are_in_order() -> None:
    rules = (Rule("special", ("a/b",)), Rule("rest", ("a/",), 7.0))
    groups = list_groups(["a/z.py", "a/b.py", "a/c.py"], rules)
    assert [(group.name, group.files, group.bound_s) for group in groups] == [
        ("special", ("a/b.py",), 2000.0),
        ("rest", ("a/c.py", "a/z.py"), 7.0),
    ]


def test_what_takes_longest_starts_first() -> None:
    rules = (Rule("short", ("a/b",), takes_s=1.0), Rule("long", ("a/",), takes_s=2.0))
    assert [group.name for group in list_groups(["a/b.py", "a/c.py"], rules)] == ["long", "short"]


def test_a_file_that_no_rule_takes_is_named() -> None:
    with pytest.raises(UngroupedTestError, match=r"^b/test_x\.py is in no group; add it to RULES"):
        list_groups(["a/test_x.py", "b/test_x.py"], (Rule("a", ("a/",)),))
