"""How `make test` reports what happened in a group's process."""

from __future__ import annotations

from typing import Any

import pytest

from runner.report import Counts, Outcome, format_outcome, format_summary, read_counts

JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_good" time="0.5" />
<testcase classname="tests.unit.test_a" name="test_bad[x]" time="2.0"><failure message="m">text</failure></testcase>
<testcase classname="tests.unit.test_a" name="test_bad[x]" time="0.1"><error message="m">its teardown</error></testcase>
<testcase classname="tests.unit.test_b" name="test_broken" time="0"><error message="m">its fixture</error></testcase>
<testcase classname="tests.unit.test_b" name="test_left_out" time="0"><skipped message="no GPU" /></testcase>
</testsuite></testsuites>"""


def outcome(**fields: Any) -> Outcome:
    defaults: dict[str, Any] = {
        "group": "unit",
        "exit_code": 0,
        "seconds": 3.0,
        "cpu_s": 2.0,
        "peak_bytes": 3 << 29,
        "counts": Counts(passed=2),
        "last_test": "tests/unit/test_a.py::test_good",
    }
    return Outcome(**{**defaults, **fields})


def test_counts_of_a_report() -> None:
    counts = read_counts(JUNIT)
    assert counts.names == ("tests/unit/test_a.py::test_bad[x]", "tests/unit/test_b.py::test_broken")
    assert (counts.failed, counts.skipped) == (2, 1)
    assert max(counts.slowest) == (2.0, "tests/unit/test_a.py::test_bad[x]")


def test_a_report_that_is_cut_off() -> None:
    with pytest.raises(ValueError, match="not a whole JUnit report"):
        read_counts(JUNIT[:200])


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        pytest.param({}, [], id="good"),
        pytest.param({"exit_code": 1, "counts": Counts(1, 1, 0, ("a::b",))}, ["failed: a::b"], id="a failed test"),
        pytest.param(
            {"exit_code": -11, "counts": None},
            ["died by SIGSEGV in tests/unit/test_a.py::test_good"],
            id="a crash names the test",
        ),
        pytest.param(
            {"exit_code": -9, "counts": None},
            ["died by SIGKILL in tests/unit/test_a.py::test_good; did the machine run out of memory?"],
            id="killed",
        ),
        pytest.param(
            {"exit_code": 3, "counts": None, "last_test": ""},
            ["ended with exit code 3 and without a report, in no test yet"],
            id="os._exit",
        ),
        pytest.param({"exit_code": 5, "counts": Counts()}, ["ran no test"], id="collected nothing"),
        pytest.param({"counts": Counts(skipped=4)}, ["ran no test"], id="skipped everything"),
        pytest.param(
            {"exit_code": 1},
            ["ended with exit code 1 although no test failed, in tests/unit/test_a.py::test_good"],
            id="a plugin failed",
        ),
        pytest.param(
            {"exit_code": -9, "counts": None, "over_bound_s": 60.0},
            ["did not end within 60 s, in tests/unit/test_a.py::test_good; its stacks are in the log"],
            id="hung",
        ),
        pytest.param({"leftovers": ("sleep 99",)}, ["left a process behind: sleep 99"], id="leftovers"),
    ],
)
def test_problems(fields: dict[str, Any], problems: list[str]) -> None:
    assert list(outcome(**fields).problems) == problems


def test_a_line_for_a_group() -> None:
    line = "unit                   ok         2 passed, 0 failed, 0 skipped      3 s,     2 s of CPU, 1.5 GiB"
    assert format_outcome(outcome()) == line


def test_the_last_line_counts_groups_that_died() -> None:
    died = outcome(exit_code=-11, counts=None)
    failed = outcome(exit_code=1, counts=Counts(1, 2, 3, ("a::b", "a::c")), leftovers=("sleep 99",))
    summary = format_summary([outcome(), died, failed], 10.0, 5 << 30)
    assert summary.splitlines()[-2:] == [
        "3 groups in 10 s, 6 s of CPU, at least 5.0 GiB of memory free",
        "3 passed, 3 failed, 3 skipped",
    ]
