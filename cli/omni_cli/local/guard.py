"""The guard: a process that outlives `omnipipe` briefly and kills any processes that `omnipipe` left behind.

It runs as `python -m omni_cli.local.guard` and reads lines from stdin: +SESSION begins to watch a session, -SESSION
forgets it. stdin ends when `omnipipe` ends for any reason. The guard then kills the sessions that it still watches, and
all their descendants. In addition, the kernel kills a stage server when `omnipipe` dies (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

END_WAIT_S = 10.0
"""How long to wait for killed processes to end: a system call that cannot be interrupted may delay the end."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process of this machine, distinguished from a later one with the same number."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since the machine booted."""


def list_tree(session: int) -> set[ProcessId]:
    """Returns the running processes of a session and all their running descendants, in any session."""
    table = _read_process_table()
    tree = {pid for pid, entry in table.items() if entry.session == session}
    while found := {pid for pid, entry in table.items() if entry.parent in tree} - tree:
        tree |= found
    return {ProcessId(pid, table[pid].start_ticks) for pid in tree}


def list_running(processes: Iterable[ProcessId]) -> set[ProcessId]:
    """Returns the processes that are still running."""
    table = _read_process_table()
    return {one for one in processes if one.pid in table and table[one.pid].start_ticks == one.start_ticks}


def end_tree(session: int, known: Iterable[ProcessId] = ()) -> None:
    """Kill the session's tree, later children of it, and the known processes. Gives up after END_WAIT_S."""
    deadline = time.monotonic() + END_WAIT_S
    while (left := list_tree(session) | list_running(known)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class _Entry:
    parent: int
    session: int
    start_ticks: int


def _read_process_table() -> dict[int, _Entry]:
    # Processes that have ended but are not reaped yet (states Z and X) are left out.
    table: dict[int, _Entry] = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            stat = (directory / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        # The command, in parentheses, may contain any characters. The fields after it are 3, 4, ... in proc(5).
        fields = stat.rpartition(")")[2].split()
        if fields[0] not in ("Z", "X"):
            table[int(directory.name)] = _Entry(int(fields[1]), int(fields[3]), int(fields[19]))
    return table


def main() -> None:
    """Watch sessions until stdin ends, then kill the remaining ones."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        if line[0] == "+":
            sessions.add(session)
        else:
            sessions.discard(session)
    for session in sessions:
        end_tree(session)


if __name__ == "__main__":
    main()
