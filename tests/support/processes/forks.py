"""Programs under test as forks of a server that has imported them, so that they start in milliseconds.

Importing vLLM costs a stage server eight seconds of CPU; an operator's imports cost one second. A fork has its own
session, log and environment, and dies with the fork server. Tests signal a fork and read its exit code as for any
program.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from omni_proto.runtime.process import ParentDeathSignal

_CONTEXT = multiprocessing.get_context("forkserver")
_preloaded: list[str] = []


def preload(module: str) -> None:
    """Makes the fork server import the module when the server starts, which happens at the first fork."""
    _preloaded.append(module)
    _CONTEXT.set_forkserver_preload(_preloaded)


class ForkedProgram:
    """Runs `main(arguments)` of a module in a fork. Has the methods of subprocess.Popen that tests use."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        work = (module, list(arguments), str(log), dict(environment))
        self._process: ForkServerProcess = _CONTEXT.Process(target=_live, args=work, daemon=True)
        self._name = module
        _start_server()
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        os.kill(self.pid, sig)

    def kill(self) -> None:
        self._process.kill()


def _start_server() -> None:
    """Starts the fork server, unless it runs. Sets PYTHONPATH: CPython 3.11 does not pass pytest's sys.path to it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _live(module: str, arguments: list[str], log: str, environment: Mapping[str, str]) -> None:
    ParentDeathSignal(os.getppid())()
    os.setsid()
    with open(log, "ab", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    # A normally started program may have children, and these import its main module, not pytest's.
    multiprocessing.current_process().daemon = False
    program = sys.modules["__main__"] = importlib.import_module(module)
    main: Callable[[list[str]], int] = program.main
    sys.exit(main(arguments))
