"""Daemons of the node. They outlive the process that started them, and are found again by their PID files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from support.cluster.node import cgroups
from support.cluster.node.layout import Layout
from support.processes.logged_program import LoggedProgram


class Daemon(LoggedProgram):
    """One program in the node's cgroup, whose output goes to a file.

    With `in_node` the program runs in the node's network namespace. Without `command`, the object stands for a daemon
    that another process started, and uses its recorded command. `start`, `stop` and `kill` do the same as those of
    ChildProcess, but return nothing.
    """

    def __init__(self, layout: Layout, name: str, command: Sequence[str | Path] = (), *, in_node: bool = True) -> None:
        self.name = name
        self.log = layout.logs / f"{name}.log"
        self._command_file = layout.run / f"{name}.json"
        self._pid_file = layout.run / f"{name}.pid"
        # nsenter instead of `ip netns exec`: the latter mounts another /sys, without cgroups.
        prefix = ["nsenter", f"--net={layout.network}"] if in_node else []
        self._command = [*prefix, *map(str, command)] if command else self._known_command()

    @property
    def pid(self) -> int | None:
        """Returns the process ID from the PID file; None if that process has ended, even if its ID is in use again."""
        try:
            pid, started = self._pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _start_time(int(pid)) == started else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    def start(self) -> None:
        """Starts the program and appends to its log. Raises RuntimeError if it is running."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=cgroups.enter_daemons,
                start_new_session=True,
            )
        self._command_file.write_text(json.dumps(self._command))
        self._pid_file.write_text(f"{process.pid} {_start_time(process.pid)}")
        _CHILDREN[process.pid] = process

    def stop(self, timeout_s: float = 10.0) -> None:
        """Sends SIGTERM, and SIGKILL after `timeout_s`."""
        self._end(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process has ended."""
        self._end(signal.SIGKILL)
        while self.running:
            time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)

    def _known_command(self) -> list[str]:
        return json.loads(self._command_file.read_text()) if self._command_file.exists() else []

    def _end(self, number: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


# Daemons that this process started, by process ID: a parent must reap its children.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def _start_time(pid: int) -> str | None:
    """Returns when the process started, in clock ticks since boot. None if the process is gone or a zombie."""
    if child := _CHILDREN.get(pid):
        child.poll()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
