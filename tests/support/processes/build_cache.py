"""Cache folders that one process fills once, either completely or not at all. Uses only the standard library."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path


def cache_root() -> Path:
    """Returns the project's folder below $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline"


def fill_once(folder: Path, name: str, fill: Callable[[Path], None]) -> None:
    """If `folder` does not exist, calls `fill` with a temporary folder and renames that to `folder`.

    A concurrent caller waits and then reuses the folder.
    Temporary folders of the same name that interrupted calls left (`NAME-*.building`) are removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f"{name}.lock", name):
        if folder.is_dir():
            return
        for leftover in folder.parent.glob(f"{name}-*.building"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = folder.with_name(f"{folder.name}.building")
        building.mkdir()
        fill(building)
        building.rename(folder)


def say(text: str) -> None:
    """Writes a line of progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another build of {name} is running: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
