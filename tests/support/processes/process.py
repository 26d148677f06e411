"""Child processes that die with their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from support.processes.logged_program import LoggedProgram
from support.processes.polling import PATIENCE_S

ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Prefix of a command: the kernel kills the process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG).

setpriv of util-linux is used instead of preexec_fn. With preexec_fn, subprocess forks instead of using vfork. If this
process has used gRPC, gRPC restarts its threads in the forked child, which may abort the child before exec.
"""


class Running(Protocol):
    """The part of subprocess.Popen that ChildProcess needs of a process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class ChildProcess(LoggedProgram):
    """One program whose output goes to a file.

    The kernel kills the program when the thread that started it ends for any reason (PR_SET_PDEATHSIG), so a test run
    that dies leaves no process behind. Therefore start programs from the main thread.
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
        """Returns the process ID. Raises RuntimeError if the program was not started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Returns the exit status, negative for a signal; None while the program runs or before it starts."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        """Returns whether the program was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        return f"ended with {self.returncode}"

    def start(self) -> None:
        """Starts the program and appends to its log. Raises RuntimeError if it is running."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self._process = self._spawn()

    def stop(self, timeout_s: float = PATIENCE_S) -> int | None:
        """Sends SIGTERM, and SIGKILL after `timeout_s`. Returns the exit status."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> int | None:
        """Sends SIGKILL. Returns the exit status."""
        return self._end(signal.SIGKILL, PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, such as SIGSTOP or SIGCONT, and does not wait."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Waits for the program to end. Returns the exit status. Raises TimeoutExpired after `timeout_s`."""
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
                # Ctrl-C must reach only the parent, which stops its children in order.
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
                self._process.wait(PATIENCE_S)
        return self._process.poll()


def listening(port: int) -> bool:
    """Returns whether a process accepts connections on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
