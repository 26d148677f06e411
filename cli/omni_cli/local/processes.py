"""Stage servers as processes of this machine: starts, watches and stops them.

Each stage runs in its own session, so that Ctrl-C in the terminal reaches only `omnipipe`, and all processes that a
stage starts can be found again. Three mechanisms prevent orphans. An orderly stop ends every process of each session.
If `omnipipe` dies, PR_SET_PDEATHSIG kills the stages, and a guard process (guard.py) kills the rest of their sessions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from omni_cli.local.guard import ProcessId, end_tree, list_running, list_tree
from omni_proto.pod_contract import TERMINATION_LOG_VARIABLE, Termination, TerminationReason, parse_termination
from omni_proto.runtime.process import ParentDeathSignal

RUN_MODULE = (sys.executable, "-P", "-m")
"""Runs a module as a program. Without -P, modules of the current directory would take the place of installed ones."""
LEFTOVER_WAIT_S = 3.0
"""How long processes that a stage started may outlive it in an orderly stop."""
TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class StageAddress:
    """Ports of a ready stage server, from its address file."""

    grpc: int
    health: int
    metrics: int


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Files of one stage process."""

    config: Path
    address: Path
    log: Path
    termination: Path


class SessionGuard:
    """The guard process. When `omnipipe` ends, for any reason, it kills the sessions that are registered with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*RUN_MODULE, "omni_cli.local.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, session: int) -> None:
        """Register a session, to be killed if `omnipipe` ends."""
        self._send(f"+{session}")

    def forget(self, session: int) -> None:
        """Unregister a session, because it has ended."""
        self._send(f"-{session}")

    def close(self) -> None:
        """End the guard, which first kills the sessions that are still registered."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None or self._process.poll() is not None:
            raise RuntimeError("the guard process has ended; nothing would end the stages if omnipipe were killed")
        pipe.write(line + "\n")
        pipe.flush()


class StageProcess:
    """One stage server, or the gateway.

    Create it in the main thread: the kernel kills the process when the thread that started it ends (PR_SET_PDEATHSIG).
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        files: StageFiles,
        guard: SessionGuard,
        extra_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.files = files
        self.started = time.monotonic()
        self._guard = guard
        self._log: IO[bytes] = files.log.open("wb")
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            TERMINATION_LOG_VARIABLE: str(files.termination),
            **extra_environment,
        }
        self._popen = subprocess.Popen(
            [*argv, "--config", str(files.config), "--address-file", str(files.address)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=ParentDeathSignal(os.getpid()),
        )
        guard.watch(self.session)

    @property
    def session(self) -> int:
        """Id of the stage's session: the pid of the stage server."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit status of the stage server, None while it runs."""
        return self._popen.poll()

    def read_address(self) -> StageAddress | None:
        """Returns the stage's ports; None until it is ready."""
        try:
            data = json.loads(self.files.address.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return StageAddress(grpc=int(data["grpc"]), health=int(data["health"]), metrics=int(data["metrics"]))

    def has_given_up(self) -> bool:
        """Returns whether the stage server runs but reports that its engine hangs.

        In a cluster its liveness probe would fail, and kubelet would restart it.
        """
        return self.poll() is None and self._read_termination().reason == TerminationReason.STEP_TIMEOUT

    def describe_end(self) -> str:
        """Returns a description of how the stage server ended, with its termination message."""
        status = self.poll()
        if status is None:
            text = "cannot continue" if self.has_given_up() else "is running"
        else:
            text = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        said = self._read_termination()
        if not said.reason and not said.message:
            return text
        parts = (said.reason, f"({said.field})" if said.field else "", said.message)
        return f"{text}: {' '.join(part for part in parts if part)}"

    def read_log_tail(self, lines: int) -> list[str]:
        """Returns the last `lines` lines of the log."""
        with self.files.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the stage server only, which stops its engine itself."""
        if self.poll() is None:
            self._popen.send_signal(number)

    def list_tree(self) -> set[ProcessId]:
        """Returns the running processes of the stage's session and all their running descendants."""
        return list_tree(self.session)

    def _read_termination(self) -> Termination:
        """Returns the termination message, which in a cluster is for kubelet.

        It is empty if the stage server has written none, or has not finished writing it.
        """
        try:
            text = self.files.termination.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return Termination("")
        return parse_termination(text) or Termination("")

    def finish(self, known: Iterable[ProcessId] = ()) -> None:
        """Kill the remaining processes of the stage and the known processes, and close the log.

        If the stage server has ended, the processes that it left behind first get LEFTOVER_WAIT_S to end by themselves.
        """
        deadline = time.monotonic() + (LEFTOVER_WAIT_S if self.poll() is not None else 0)
        while (self.list_tree() | list_running(known)) and time.monotonic() < deadline:
            time.sleep(0.05)
        end_tree(self.session, known)
        self._popen.wait()
        self._log.close()
        self._guard.forget(self.session)


def stop_processes(processes: Sequence[StageProcess], grace_s: float) -> list[str]:
    """Send SIGTERM to all stage servers, and after grace_s seconds kill the remaining processes.

    Returns the names of the stages that did not end in time.
    """
    trees = {process.name: process.list_tree() for process in processes}
    for process in processes:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    late = [process.name for process in processes if process.poll() is None]
    for process in processes:
        process.finish(trees[process.name])
    return late
