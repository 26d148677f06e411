"""The runner ends, and names each problem, when its pytest processes fail, die, hang or leave processes behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from runner.__main__ import run_groups
from runner.groups import Group
from runner.report import Outcome

BOUND_S = 40.0
"""Within it, pytest begins its test even on a busy machine."""
SESSION = "import subprocess; subprocess.Popen(['sleep', '98765'], start_new_session=True)"
TESTS = {
    "good": "import sys\ndef test_it(): assert not sys.dont_write_bytecode",
    "fails": "def test_it(): assert False",
    "dies": "import os, signal\ndef test_first(): assert 'told' == 'at once'\n"
    "def test_it(): os.kill(os.getpid(), signal.SIGSEGV)",
    "exits": "import os\ndef test_it(): os._exit(0)",
    "hangs": f"import time\ndef test_it():\n    {SESSION}\n    time.sleep(3600)",
    "leaves": f"def test_it():\n    {SESSION}",
}


def prepare(patch: pytest.MonkeyPatch) -> None:
    """Sets the environment for test files outside the repository, where pyproject.toml does not configure plugins."""
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    patch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # A group writes bytecode all the same.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the test files and the groups' logs."""
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, Outcome]:
    """The outcome of each of TESTS. Three groups run at a time."""
    groups = []
    for name, text in TESTS.items():
        file = folder / f"test_{name}.py"
        file.write_text(text)
        groups.append(Group(name, (str(file),), BOUND_S if name == "hangs" else 600.0))
    with pytest.MonkeyPatch.context() as patch:
        prepare(patch)
        patch.setattr("runner.process.LEFTOVERS_WAIT_S", 5.0)
        found, free = run_groups(groups, folder, workers=3, bound_s=1200.0, options=["-p", "no:cacheprovider"])
    assert free > 0
    return {outcome.group: outcome for outcome in found}


def test_every_group_has_its_outcome(outcomes: dict[str, Outcome]) -> None:
    assert outcomes.keys() == TESTS.keys()
    assert {name for name, outcome in outcomes.items() if not outcome.problems} == {"good"}


def test_a_failure_is_named(outcomes: dict[str, Outcome]) -> None:
    (problem,) = outcomes["fails"].problems
    assert problem.startswith("failed: ")
    assert problem.endswith("test_fails.py::test_it")


def test_a_crash_is_named_with_its_test(outcomes: dict[str, Outcome]) -> None:
    (problem,) = outcomes["dies"].problems
    assert problem.startswith("died by SIGSEGV in ")
    assert problem.endswith("test_dies.py::test_it")


def test_a_failure_before_a_crash_is_reported(outcomes: dict[str, Outcome], folder: Path) -> None:
    log = (folder / "dies.log").read_text()
    assert "call of " in log
    assert "AssertionError: assert 'told' == 'at once'" in log


def test_an_exit_without_a_report_is_a_failure(outcomes: dict[str, Outcome]) -> None:
    (problem,) = outcomes["exits"].problems
    assert problem.startswith("ended with exit code 0 and without a report, in ")


def test_a_hang_ends_at_its_bound_and_takes_everything_with_it(outcomes: dict[str, Outcome]) -> None:
    (problem,) = outcomes["hangs"].problems
    assert problem.startswith(f"did not end within {BOUND_S:.0f} s, in ")
    assert "test_hangs.py::test_it" in problem
    assert sleepers() == []


def test_a_hang_shows_its_stacks(outcomes: dict[str, Outcome], folder: Path) -> None:
    log = (folder / "hangs.log").read_text()
    assert re.search(r'File ".*test_hangs\.py", line \d+ in test_it', log)


def test_a_process_left_behind_is_named_and_ended(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["leaves"].counts is not None
    assert outcomes["leaves"].problems == ("left a process behind: sleep 98765",)
    assert sleepers() == []


def sleepers() -> list[int]:
    """Returns the ids of `sleep` processes that TESTS started and that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if (folder / "cmdline").read_bytes() == b"sleep\x0098765\x00":
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def test_a_group_past_the_bound_of_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_long.py"
    file.write_text("import time\ndef test_it(): time.sleep(3600)")
    prepare(monkeypatch)
    groups = [Group(name, (str(file),), 300.0) for name in ("runs", "waits")]
    (waits, runs), _ = run_groups(groups, tmp_path, workers=1, bound_s=20.0)
    assert "did not end within 20 s, in " in runs.problems[0]
    assert "not started: the whole run passed its bound of 20 s" in waits.problems[0]
