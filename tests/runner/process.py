"""One group as a process: started in a session of its own, watched, and ended with all that descends from it."""

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
"""Environment: marks every process that a group starts, in whatever session."""
PORTS_EACH = 2_400
"""Five groups side by side stay below where the kernel takes the ports of outgoing connections from."""
LEFTOVERS_WAIT_S = 10.0
"""For what ends by itself soon after a group: guards, fork servers, resource trackers."""
STACKS_WAIT_S = 3.0


class GroupProcess:
    """A running group. `slot` counts the groups that run side by side, from 0: each has ports of its own."""

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
            **os.environ,
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
        """Returns the outcome once the process has ended, after ending what it left behind. Ends it at its bound."""
        pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() - self._started > self.group.bound_s:
                self.end(self.group.bound_s)
            return None
        # Popen must not wait for it once more.
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
        """For passing bound_s: ask for the stacks of all threads, then end it with all that descends from it."""
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
        # What died with a group that was ended for its bound is no defect of its own.
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
