"""The guard: a process that outlives `omnipipe` by a moment to end what it left behind.

Run as `python -m omni_cli.guard`. Reads lines from stdin: +SESSION begins to watch a session, -SESSION forgets it. When
stdin ends, because `omnipipe` ended in whatever way, it kills the processes of the sessions that it still watches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

END_WAIT_S = 10.0
"""How long killed processes may take to vanish (a process in a system call that cannot be interrupted)."""


def list_session(session: int) -> list[int]:
    """Process ids of a session, without those that have ended and wait to be reaped. Reads /proc."""
    members: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        # The command, in parentheses, may hold anything; after it: state, ppid, pgrp, session.
        state, _, _, sid = stat.rpartition(")")[2].split()[:4]
        if int(sid) == session and state not in ("Z", "X"):
            members.append(int(entry.name))
    return members


def end_session(session: int) -> None:
    """SIGKILL every process of the session, and those that they start meanwhile. Gives up after END_WAIT_S."""
    deadline = time.monotonic() + END_WAIT_S
    while (members := list_session(session)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    """Watch until stdin ends."""
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
        end_session(session)


if __name__ == "__main__":
    main()
