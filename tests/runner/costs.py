"""A pytest plugin that measures the CPU time of each test's process tree, to find tests worth shortening.

    PYTHONPATH=tests python -m pytest -p runner.costs tests/engine

At its end pytest prints the most expensive tests and files. The plugin counts this process and all its descendants,
including those that have ended and were waited for. Processes that were reparented to init are not counted. A fixture's
cost goes to the test that used it first.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest

SHOWN = 40
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_costs: dict[str, float] = {}


def read_tree_cpu(root: int) -> float:
    """Returns the CPU seconds that a process and all its descendants have used so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            pid = int(folder.name)
            parents[pid] = int(fields[1])
            ticks[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    for pid, used in ticks.items():
        above: int | None = pid
        while above is not None and above != root:
            above = parents.get(above)
        total += used if above == root else 0
    return total / _TICKS_PER_S


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):  # type: ignore[no-untyped-def]
    """Adds the CPU seconds that the tree used during the test to the test's cost."""
    before = read_tree_cpu(os.getpid())
    try:
        return (yield)
    finally:
        # The total can fall: when a process is reparented to init, its CPU time no longer counts.
        _costs[item.nodeid] = _costs.get(item.nodeid, 0.0) + max(0.0, read_tree_cpu(os.getpid()) - before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes the most expensive tests and files."""
    files: dict[str, float] = defaultdict(float)
    for name, cost in _costs.items():
        files[name.partition("::")[0]] += cost
    for title, costs in (("tests", _costs), ("files", files)):
        terminalreporter.section(f"CPU seconds of {title}: {sum(costs.values()):.0f}")
        for name, cost in sorted(costs.items(), key=lambda pair: -pair[1])[:SHOWN]:
            terminalreporter.write_line(f"{cost:7.1f}  {name}")
