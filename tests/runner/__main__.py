"""Runs the suite in groups and prints a report. The package's docstring describes how.

PYTHONPATH=tests python -m runner [--workers 5] [--tier first|rest|all] [--only NAME]... [-- PYTEST OPTIONS]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runner.groups import Group, choose_tier, list_groups
from runner.process import GroupProcess
from runner.report import Outcome, format_outcome, format_summary
from support.controlplane.binaries import list_missing

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("unit", "processes", "engine", "pipeline", "controlplane")
LOG_LINES = 400


def find_test_files() -> list[str]:
    """Returns the paths of all test files that this runner runs, relative to the repository's root."""
    tests = ROOT / "tests"
    return sorted(str(file.relative_to(ROOT)) for name in FOLDERS for file in (tests / name).rglob("test_*.py"))


def run_groups(
    groups: Sequence[Group], folder: Path, *, workers: int, bound_s: float, options: Sequence[str] = ()
) -> tuple[list[Outcome], int]:
    """Runs the groups, `workers` at a time. After `bound_s` seconds it ends all running groups and starts no more.

    Returns each group's outcome, and the lowest available memory of the machine during the run, in bytes.
    """
    waiting, running, outcomes = list(groups), list[GroupProcess](), list[Outcome]()
    least_free = _free_bytes()
    deadline = time.monotonic() + bound_s
    with _Guard() as guard:
        while waiting or running:
            late = time.monotonic() > deadline
            while waiting and len(running) < workers and not late:
                slot = next(n for n in range(workers) if n not in {one.slot for one in running})
                running.append(GroupProcess(waiting.pop(0), folder, slot, options))
                guard.watch(running[-1].session)
            if late:
                for process in running:
                    process.end(bound_s)
                outcomes += [_never_started(group, bound_s) for group in waiting]
                waiting.clear()
            for process in list(running):
                if outcome := process.poll():
                    running.remove(process)
                    guard.forget(process.session)
                    outcomes.append(outcome)
                    _report(outcome, process.log)
            least_free = min(least_free, _free_bytes())
            time.sleep(0.2)
    return outcomes, least_free


class _Guard:
    """A process of omni_cli.local.guard, which ends the groups' processes however the runner ends, even by SIGKILL."""

    def __enter__(self) -> _Guard:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "omni_cli.local.guard"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def watch(self, session: int) -> None:
        self._say(f"+{session}")

    def forget(self, session: int) -> None:
        self._say(f"-{session}")

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


def _never_started(group: Group, bound_s: float) -> Outcome:
    return Outcome(
        group.name, 1, 0.0, 0.0, 0, None, f"(not started: the whole run passed its bound of {bound_s:.0f} s)"
    )


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _report(outcome: Outcome, log: Path) -> None:
    print(format_outcome(outcome), flush=True)
    if outcome.problems:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(f"---- the end of {log}", *lines[-LOG_LINES:], "----", sep="\n", flush=True)


def main() -> int:
    """Returns the exit code: 0 if every group passed."""
    parser = argparse.ArgumentParser(description="Run the suite in groups, each a pytest process.")
    parser.add_argument("--workers", type=int, default=5, help="groups side by side (default: 5)")
    parser.add_argument("--bound", type=float, default=3300.0, help="seconds for the whole run (default: 3300)")
    parser.add_argument("--tier", choices=("first", "rest", "all"), default="all", help="groups to run (default: all)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this group alone (repeatable)")
    parser.add_argument("--logs", type=Path, default=ROOT / "test-logs", help="folder for logs and reports")
    parser.add_argument("options", nargs="*", help="further options of pytest, after --")
    args = parser.parse_args()
    groups = list_groups(find_test_files())
    if unknown := sorted(set(args.only) - {group.name for group in groups}):
        parser.error(f"--only: no group {', '.join(unknown)}; groups: {', '.join(group.name for group in groups)}")
    args.logs.mkdir(parents=True, exist_ok=True)
    reported = {file.stem for file in args.logs.glob("*.xml")}
    needed = {program for group in groups for program in group.needs}
    chosen, left_out = choose_tier(groups, args.tier, missing=list_missing(needed), reported=reported)
    chosen = [group for group in chosen if not args.only or group.name in args.only]
    for group in left_out:
        print(f"{group.name:22} left to `make test-all`, which builds the programs that it needs", flush=True)
    started = time.monotonic()
    outcomes, free = run_groups(chosen, args.logs, workers=args.workers, bound_s=args.bound, options=args.options)
    print(format_summary(outcomes, time.monotonic() - started, free))
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
