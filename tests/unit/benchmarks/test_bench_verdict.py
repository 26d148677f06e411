"""`make bench` fails if a ratio breaks its bound, gets worse by more than its tolerance, or is no longer measured.

A goal is a bound that a ratio may miss.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness.stored import load_committed, write_result
from benchmarks.harness.verdict import Ratio, describe_bound, find_problems, judge, read_last

from support.processes.polling import PATIENCE_S

ROOT = Path(__file__).parents[3]
CASE = ROOT / "tests" / "support" / "processes" / "given_bench.py"


def floor(value: float) -> Ratio:
    return Ratio("x", value, at_least=0.5, tolerance=0.1)


def ceiling(value: float) -> Ratio:
    return Ratio("x", value, at_most=1.3, tolerance=0.1)


def free(value: float) -> Ratio:
    return Ratio("x", value, tolerance=0.1)


def free_cost(value: float) -> Ratio:
    return Ratio("x", value, tolerance=0.1, lower_is_better=True)


def goal(value: float) -> Ratio:
    return Ratio("x", value, at_least=1.0, goal=True, tolerance=0.1)


@pytest.mark.parametrize(
    ("ratio", "last", "expected"),
    [
        pytest.param(floor(0.5), None, [], id="at its floor"),
        pytest.param(floor(0.499), None, ["does not keep >= 0.5"], id="below its floor"),
        pytest.param(floor(math.nan), None, ["does not keep"], id="no number keeps no floor"),
        pytest.param(ceiling(1.3), None, [], id="at its ceiling"),
        pytest.param(ceiling(1.31), None, ["does not keep <= 1.3"], id="over its ceiling"),
        pytest.param(goal(0.7), None, [], id="a goal not reached is only shown"),
        pytest.param(free(0.01), None, [], id="no bound, no last result"),
        pytest.param(free(0.9), 1.0, [], id="worse within the tolerance"),
        pytest.param(free(0.899), 1.0, ["0.90 of the last result, 1;"], id="worse by more"),
        pytest.param(free(50.0), 1.0, [], id="better by any amount"),
        pytest.param(free_cost(0.2), 1.0, [], id="no bound, lower is better: better"),
        pytest.param(free_cost(1.11), 1.0, ["of the last result"], id="no bound, lower is better: worse"),
        pytest.param(free(math.nan), 1.0, ["the tolerance is 10%"], id="no number is a regression"),
        pytest.param(free(1.0), 0.0, [], id="nothing to divide by"),
        pytest.param(goal(0.7), 0.8, ["of the last result"], id="a goal regresses too"),
        pytest.param(ceiling(1.1), 1.0, [], id="lower is better: within"),
        pytest.param(ceiling(1.11), 1.0, ["of the last result"], id="lower is better: worse"),
        pytest.param(ceiling(0.2), 1.0, [], id="lower is better: better"),
        pytest.param(floor(0.4), 1.0, ["does not keep", "of the last result"], id="both"),
    ],
)
def test_what_fails_a_run(ratio: Ratio, last: float | None, expected: list[str]) -> None:
    known = {} if last is None else {"x": last}
    problems = find_problems(judge([ratio], known), known)
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


def test_a_ratio_that_is_no_longer_measured_fails_the_run() -> None:
    known = {"x": 1.0, "y": 1.0}
    assert find_problems(judge([free(1.0)], known), known) == ["y: in the last result, but not measured in this run"]


def test_a_row_says_all_that_was_judged() -> None:
    (verdict,) = judge([floor(0.6)], {"x": 0.8})
    assert verdict.to_row() == {
        "name": "x",
        "value": 0.6,
        "bound": ">= 0.5",
        "met": True,
        "last": 0.8,
        "to_last": 0.75,
        "tolerance": 0.1,
    }
    assert read_last({"ratios": [verdict.to_row()]}) == {"x": 0.6}
    assert read_last(None) == {}
    assert describe_bound(goal(1.0)) == "goal: >= 1"
    assert describe_bound(free(1.0)) is None


def test_a_rejected_run_replaces_nothing_and_goes_with_the_next_good_one(tmp_path: Path) -> None:
    """A rejected run is written to a file of its own, which the next accepted run deletes."""
    good = write_result("a", tmp_path, {"n": 1}, accepted=True)
    rejected = write_result("a", tmp_path, {"n": 2}, accepted=False)
    assert json.loads(good.read_text()) == {"n": 1}
    assert json.loads(rejected.read_text()) == {"n": 2}
    write_result("a", tmp_path, {"n": 3}, accepted=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert load_committed("a", tmp_path) == {"n": 3}
    assert load_committed("b", tmp_path) is None


def test_the_last_result_is_the_committed_one(tmp_path: Path) -> None:
    """A run is compared with the committed result. Otherwise each run could be a little worse than the one before."""
    write_result("a", tmp_path, {"n": 1}, accepted=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "a.json"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *command], check=True)
    write_result("a", tmp_path, {"n": 2}, accepted=True)
    assert load_committed("a", tmp_path) == {"n": 1}


def bench(value: float, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the real command line with an additional case, `given`, whose only ratio is `value`."""
    command = [sys.executable, str(CASE), "given", "--results", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GIVEN_VALUE": str(value)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)


def test_the_command_exits_1_below_a_floor_and_after_a_regression(tmp_path: Path) -> None:
    good = bench(0.9, tmp_path)
    assert (good.returncode, good.stderr) == (0, "")
    below = bench(0.4, tmp_path)
    assert below.returncode == 1
    assert "FAILED given: ours over theirs: 0.4 does not keep >= 0.5" in below.stderr
    worse = bench(0.7, tmp_path)
    assert worse.returncode == 1
    assert "0.78 of the last result, 0.9" in worse.stderr
    assert json.loads((tmp_path / "given.json").read_text())["ratios"][0]["value"] == 0.9
    assert json.loads((tmp_path / "given.rejected.json").read_text())["ratios"][0]["last"] == 0.9
