"""Every test file runs in exactly one group."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from runner.__main__ import FOLDERS, ROOT, find_test_files
from runner.groups import CONTROL_PLANE, RULES, Rule, UngroupedTestError, choose_tier, list_groups

# Folders whose tests run on a real node (make e2e), and folders without test files.
NOT_RUN_HERE = {"cluster", "data", "golden", "runner", "support"}


def test_every_test_file_is_in_one_group() -> None:
    files = find_test_files()
    grouped = Counter(file for group in list_groups(files) for file in group.files)
    assert grouped == Counter(files)
    assert len(files) > 100


def test_every_folder_of_tests_is_known() -> None:
    # A folder without files is what git leaves of one that was moved.
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.rglob("*.py"))}
    assert folders <= {*FOLDERS, *NOT_RUN_HERE}, "tests in a new folder would never run: add it to FOLDERS"


def test_every_rule_has_files() -> None:
    names = [group.name for group in list_groups(find_test_files())]
    assert sorted(names) == sorted(rule.name for rule in RULES)


def test_every_prefix_of_a_rule_matches_a_file() -> None:
    files = find_test_files()
    prefixes = [prefix for rule in RULES for prefix in rule.prefixes]
    assert [prefix for prefix in prefixes if not any(file.startswith(prefix) for file in files)] == []


def test_the_first_tier_and_the_rest_are_all_groups() -> None:
    groups = list_groups(find_test_files())
    for missing in (set(), set(CONTROL_PLANE)):
        first, left_out = choose_tier(groups, "first", missing=missing, reported=())
        rest, _ = choose_tier(groups, "rest", missing=(), reported=[group.name for group in first])
        assert Counter(group.name for group in first + rest) == Counter(group.name for group in groups)
        assert [group.name for group in left_out] == (["operator"] if missing else [])


def test_the_first_tier_uses_no_programs_that_are_built_or_downloaded() -> None:
    """So `make test` needs neither Go nor a network after set-up. A group with `needs` is left out without them."""
    uses = re.compile(
        r"^from support\.(controlplane\.(server|control_plane)|processes\.(foreign_programs|browsers)"
        r"|peers\.(prometheus import .*(program|Process)|otel_collector))|GRPCURL",
        re.MULTILINE,
    )
    only_full = re.compile("^pytestmark = .*full", re.MULTILINE)
    first = [group for group in list_groups(find_test_files()) if group.first and not group.needs]
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for group in first for file in group.files}
    del texts[str(Path(__file__).relative_to(ROOT))]
    assert [file for file, text in texts.items() if uses.search(text) and not only_full.search(text)] == []


def test_first_rule_wins_and_files_are_in_order() -> None:
    rules = (Rule("special", ("a/b",)), Rule("rest", ("a/",), 7.0))
    groups = list_groups(["a/z.py", "a/b.py", "a/c.py"], rules)
    assert [(group.name, group.files, group.bound_s) for group in groups] == [
        ("special", ("a/b.py",), 3000.0),
        ("rest", ("a/c.py", "a/z.py"), 7.0),
    ]


def test_what_takes_longest_starts_first() -> None:
    rules = (Rule("short", ("a/b",), takes_s=1.0), Rule("long", ("a/",), takes_s=2.0))
    assert [group.name for group in list_groups(["a/b.py", "a/c.py"], rules)] == ["long", "short"]


def test_a_file_that_no_rule_takes_is_named() -> None:
    with pytest.raises(UngroupedTestError, match=r"^b/test_x\.py is in no group; add it to RULES"):
        list_groups(["a/test_x.py", "b/test_x.py"], (Rule("a", ("a/",)),))
