"""A pytest plugin: writes down which test runs, for the runner to name when the process dies or hangs, and each failure
as it happens, for pytest tells them at the end only.

SIGUSR1 makes the process write the stack of every thread to its log.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest

PROGRESS_VARIABLE = "OMNIPIPE_TEST_PROGRESS"
"""Environment: the file that holds the id of the test that runs."""


def pytest_configure(config: pytest.Config) -> None:
    """pytest's own plugin enables faulthandler for crashes; this adds a signal to ask for the stacks."""
    # A copy of what is stderr now: while a test runs, pytest's capture has another file there.
    stderr = os.dup(2)
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)
    config.pluginmanager.register(FailureWriter(stderr))


class FailureWriter:
    """Writes failures to a file descriptor at once: a process that dies later does not reach pytest's summary."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = f"\n{report.when} of {report.nodeid} failed:\n{report.longreprtext}\n"
            os.write(self._descriptor, text.encode(errors="replace"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None):  # type: ignore[no-untyped-def]
    """Note the test before its fixtures start; after the last test of all, note that too."""
    note(item.nodeid)
    try:
        return (yield)
    finally:
        if nextitem is None:
            note(f"the end of the session, after {item.nodeid}")


def note(what: str) -> None:
    """Replace the contents of the progress file, if there is one."""
    if path := os.environ.get(PROGRESS_VARIABLE):
        Path(path).write_text(what, encoding="utf-8")
