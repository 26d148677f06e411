"""Programs that log to a file: waits for them and reads the end of their log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from support.processes.polling import PATIENCE_S


class LoggedProgram:
    """A base class: the subclass starts and ends the program."""

    name: str
    log: Path

    @property
    def running(self) -> bool:
        """Returns whether the program was started and has not ended."""
        raise NotImplementedError

    @property
    def ending(self) -> str:
        """Returns how the program ended, in words."""
        return "ended"

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits until `ready()` is true. Errors have the end of the log.

        Raises:
            RuntimeError: the program ended first.
            TimeoutError: `ready()` was not true within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise RuntimeError(f"{self.name} {self.ending}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not ready within {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of the program's output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""
