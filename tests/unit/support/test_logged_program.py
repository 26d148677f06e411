"""Programs that tests start: the error if one ends early or is not ready in time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.processes.process import ChildProcess


def child(folder: Path, code: str) -> ChildProcess:
    process = ChildProcess("program", [sys.executable, "-c", code], folder / "log")
    process.start()
    return process


def test_a_program_that_ends_is_shown_with_its_status_and_last_words(tmp_path: Path) -> None:
    process = child(tmp_path, "print('no such flag'); raise SystemExit(3)")
    with pytest.raises(RuntimeError, match=r"program ended with 3:\nno such flag"):
        process.wait_until(lambda: False)


def test_a_program_that_takes_too_long(tmp_path: Path) -> None:
    process = child(tmp_path, "import time; print('still loading', flush=True); time.sleep(60)")
    process.wait_until(lambda: "still" in process.log_tail())
    with pytest.raises(TimeoutError, match=r"within 0 s:\nstill loading"):
        process.wait_until(lambda: False, timeout_s=0.1)
    process.kill()
