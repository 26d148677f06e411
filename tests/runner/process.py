"""Runs one group as a process in its own session, watches it, and ends it together with all its descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from omni_cli.local.guard import ProcessId, end_tree, list_tree
from runner.groups import Group
from runner.progress import PROGRESS_VARIABLE
from runner.report import Counts, Outcome, read_counts

TOKEN_VARIABLE = "OMNIPIPE_TEST_TOKEN"
"""Environment variable that marks every process of a group, in whatever session it is."""
PORTS_EACH = 2_400
"""Ports per group. Those of five concurrent groups stay below the kernel's range for outgoing connections."""
LEFTOVERS_WAIT_S = 60.0
"""How long to wait for processes that end by themselves soon after a group: guards, fork servers, resource trackers."""
STACKS_WAIT_S = 3.0


class GroupProcess:
    """A running group. `slot` numbers the concurrent groups from 0, and gives each its own range of ports."""

    def __init__(self, group: Group, folder: Path, slot: int, options: Sequence[str]) -> None:
        self.group = group
        self.slot = slot
        self.log = folder / f"{group.name}.log"
        self._report = folder / f"{group.name}.xml"
        self._progress = folder / f"{group.name}.progress"
        self._token = f"{group.name}-{uuid.uuid4()}"
        self._over_bound_s: float | None = None
        self._started = time.monotonic()
        for file in (self._report, self._progress):
            file.unlink(missing_ok=True)
        first = 20_000 + PORTS_EACH * (slot % 5)
        environment = {
            # Without bytecode files, each of the many Python programs that tests start compiles our sources again.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "OMNIPIPE_PORTS": f"{first}-{first + PORTS_EACH - 1}",
            "COVERAGE_FILE": str(folder / f".coverage.{group.name}"),
            PROGRESS_VARIABLE: str(self._progress),
            TOKEN_VARIABLE: self._token,
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "runner.progress", f"--junitxml={self._report}"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *options, *group.files],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        """The session's id, which is the process id of pytest."""
        return self._process.pid

    def poll(self) -> Outcome | None:
        """Returns the outcome once the process has ended, after ending the processes that it left behind.

        Returns None while it runs, and ends it when its time limit has passed.
        """
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() - self._started > self.group.bound_s:
                self.end(self.group.bound_s)
            return None
        # wait4 has reaped the process, so Popen must not wait for it again.
        self._process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - self._started
        return Outcome(
            group=self.group.name,
            exit_code=self._process.returncode,
            seconds=seconds,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_bytes=usage.ru_maxrss * 1024,
            counts=self._read_counts(),
            last_test=self._progress.read_text(encoding="utf-8") if self._progress.exists() else "",
            over_bound_s=self._over_bound_s,
            leftovers=self._end_leftovers(),
        )

    def end(self, bound_s: float) -> None:
        """Ends the process and its descendants for exceeding `bound_s`, after it has logged its threads' stacks."""
        if self._over_bound_s is not None:
            return
        self._over_bound_s = bound_s
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_WAIT_S)
        end_tree(self.session, self._list_marked())

    def _read_counts(self) -> Counts | None:
        try:
            return read_counts(self._report.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _end_leftovers(self) -> tuple[str, ...]:
        deadline = time.monotonic() + LEFTOVERS_WAIT_S
        while (left := self._list_marked()) and time.monotonic() < deadline:
            time.sleep(0.1)
        commands = tuple(sorted(_command_line(one.pid)[:200] for one in left))
        end_tree(self.session, left)
        # Processes that ran when a group was ended for its time limit are not reported as left behind.
        return commands if self._over_bound_s is None else ()

    def _list_marked(self) -> set[ProcessId]:
        """Returns the processes that carry the group's token in their environment, or belong to its session."""
        token = f"{TOKEN_VARIABLE}={self._token}".encode()
        marked = list_tree(self.session)
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if token in (folder / "environ").read_bytes():
                    stat = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                    if stat[0] not in ("Z", "X"):
                        marked.add(ProcessId(int(folder.name), int(stat[19])))
            except OSError:
                continue  # it has ended meanwhile
        return marked


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
