"""A pytest plugin that writes the running test's name to a file, and each failure to the log as it happens.

The runner reports that name if the process dies or hangs. pytest itself prints failures only at the end. SIGUSR1 makes
the process write the stack of every thread to its log.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest

PROGRESS_VARIABLE = "OMNIPIPE_TEST_PROGRESS"
"""Environment variable with the path of the file for the running test's id."""


def pytest_configure(config: pytest.Config) -> None:
    """Registers SIGUSR1 with faulthandler, to dump stacks on request. pytest itself enables it only for crashes."""
    # A copy of the current stderr, because pytest's capture replaces stderr while a test runs.
    stderr = os.dup(2)
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)
    config.pluginmanager.register(FailureWriter(stderr))


class FailureWriter:
    """Writes failures to a file descriptor immediately, because a process that dies later prints no summary."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = f"\n{report.when} of {report.nodeid} failed:\n{report.longreprtext}\n"
            os.write(self._descriptor, text.encode(errors="replace"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):  # type: ignore[no-untyped-def]
    """Notes the test before its fixtures start, and after the last test the end of the session."""
    note(item.nodeid)
    try:
        return (yield)
    finally:
        if nextitem is None:
            note(f"the end of the session, after {item.nodeid}")


def note(what: str) -> None:
    """Replaces the contents of the progress file, if the variable names one."""
    if path := os.environ.get(PROGRESS_VARIABLE):
        Path(path).write_text(what, encoding="utf-8")
