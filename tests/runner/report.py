"""The outcome of a group's process, and the report's lines about it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

NO_TESTS_COLLECTED = 5
"""pytest's exit code if it finds no tests."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tests by outcome, and the names of those that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: tuple[str, ...] = ()
    slowest: tuple[tuple[float, str], ...] = ()
    """Seconds and names of all tests."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a group ended."""

    group: str
    exit_code: int
    """If negative, the number of the signal that ended the process."""
    seconds: float
    cpu_s: float
    """CPU seconds of the process and of all children that it waited for."""
    peak_bytes: int
    """Peak resident memory of the largest of these processes."""
    counts: Counts | None
    """None if the process ended without a report."""
    last_test: str
    over_bound_s: float | None = None
    """The time limit in seconds, if the process was ended for exceeding it."""
    leftovers: tuple[str, ...] = ()
    """Command lines of processes that outlived the group."""
    problems: tuple[str, ...] = field(init=False)
    """Why the group failed; empty if it passed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "problems", tuple(_list_problems(self)))


def _list_problems(outcome: Outcome) -> list[str]:
    problems = []
    where = f"in {outcome.last_test or 'no test yet'}"
    if outcome.over_bound_s is not None:
        problems.append(f"did not end within {outcome.over_bound_s:.0f} s, {where}; its stacks are in the log")
    elif outcome.exit_code < 0:
        remedy = "; did the machine run out of memory?" if -outcome.exit_code == signal.SIGKILL else ""
        problems.append(f"died by {_signal_name(-outcome.exit_code)} {where}{remedy}")
    elif outcome.counts is None:
        problems.append(f"ended with exit code {outcome.exit_code} and without a report, {where}")
    elif outcome.exit_code == NO_TESTS_COLLECTED or not (outcome.counts.passed or outcome.counts.failed):
        problems.append("ran no test")
    elif outcome.exit_code and not outcome.counts.failed:
        problems.append(f"ended with exit code {outcome.exit_code} although no test failed, {where}")
    if outcome.counts is not None:
        problems.extend(f"failed: {name}" for name in outcome.counts.names)
    problems.extend(f"left a process behind: {command}" for command in outcome.leftovers)
    return problems


def read_counts(junit_xml: str) -> Counts:
    """Returns the counts of pytest's JUnit report. Raises ValueError if the report is truncated."""
    try:
        root = ElementTree.fromstring(junit_xml)  # noqa: S314 - written by our own pytest a moment ago
    except ElementTree.ParseError as error:
        raise ValueError(f"not a whole JUnit report: {error}") from error
    failed: dict[str, None] = {}
    skipped = total = 0
    times = []
    for case in root.iter("testcase"):
        total += 1
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        times.append((float(case.get("time", 0)), name))
        if case.find("failure") is not None or case.find("error") is not None:
            failed[name] = None
        elif case.find("skipped") is not None:
            skipped += 1
    return Counts(total - len(failed) - skipped, len(failed), skipped, tuple(failed), tuple(times))


def format_outcome(outcome: Outcome) -> str:
    """Returns one line about the group, and one for each of its problems."""
    counts = outcome.counts or Counts()
    verdict = "FAILED" if outcome.problems else "ok"
    line = f"{outcome.group:22} {verdict:6} {counts.passed:5} passed, {counts.failed} failed, {counts.skipped} skipped"
    line += f"  {outcome.seconds:5.0f} s, {outcome.cpu_s:5.0f} s of CPU"
    line += f", {outcome.peak_bytes / 2**30:.1f} GiB"
    return "\n".join([line, *(f"    {problem}" for problem in outcome.problems)])


def format_summary(outcomes: Sequence[Outcome], seconds: float, least_free_bytes: int, slowest: int = 20) -> str:
    """Returns the end of the run's output: slow tests, groups with their problems, and a last line with the counts.

    `least_free_bytes` is the lowest available memory of the machine during the run.
    """
    times = sorted((one for outcome in outcomes if outcome.counts for one in outcome.counts.slowest), reverse=True)
    lines = [f"{took:7.1f} s  {name}" for took, name in times[:slowest]]
    lines += [format_outcome(outcome) for outcome in outcomes]
    passed, failed, skipped = (
        sum(getattr(outcome.counts, name) for outcome in outcomes if outcome.counts)
        for name in ("passed", "failed", "skipped")
    )
    # A group that fails without a failed test (it died or left processes behind) counts as one failure.
    failed += sum(bool(outcome.problems) and not (outcome.counts and outcome.counts.failed) for outcome in outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in outcomes)
    free = f"at least {least_free_bytes / 2**30:.1f} GiB of memory free"
    lines.append(f"{len(outcomes)} groups in {seconds:.0f} s, {cpu_s:.0f} s of CPU, {free}")
    lines.append(f"{passed} passed, {failed} failed, {skipped} skipped")
    return "\n".join(lines)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
