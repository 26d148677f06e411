"""Child processes that die with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from support.logged_program import LoggedProgram

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Before a command: the kernel kills it when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

A program of util-linux in place of preexec_fn: that makes subprocess fork where it would vfork, and gRPC, if this
process has called anything, starts its threads anew in the child, which may abort before it becomes the program.
"""


class Running(Protocol):
    """What ChildProcess needs of a process: a part of subprocess.Popen."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class ChildProcess(LoggedProgram):
    """One program with its output in a file.

    It is killed when the thread that started it ends, whatever way (PR_SET_PDEATHSIG): a test run that dies leaves
    nothing behind. So start it from the main thread.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._environment = dict(os.environ if environment is None else environment)
        self._process: Running | None = None

    @property
    def pid(self) -> int:
        """Process id of the running program."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        return f"ended with {self.returncode}"

    def start(self) -> None:
        """Start it; a log that is there is continued."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self._process = self._spawn()

    def stop(self, timeout_s: float = 10.0) -> int | None:
        """SIGTERM, SIGKILL after `timeout_s`; the exit status."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int | None:
        """SIGKILL; the exit status."""
        return self._end(signal.SIGKILL, 10.0)

    def send(self, number: signal.Signals) -> None:
        """Send a signal and return at once (SIGSTOP, SIGCONT)."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Returns the exit status; TimeoutExpired if it does not end by itself."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.wait(timeout_s)

    def _spawn(self) -> Running:
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*ENDS_WITH_PARENT, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C belongs to the parent, which stops its children in order.
                start_new_session=True,
            )

    def _end(self, number: signal.Signals, timeout_s: float) -> int | None:
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        return self._process.poll()


def listening(port: int) -> bool:
    """Returns whether somebody accepts connections on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def die_with(parent: int) -> None:
    """In a new process: be killed when `parent`, its parent, ends; end at once if it has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
