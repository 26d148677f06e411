"""What processes that work on a caller's input give up at their start. Their parent may kill them. Unix only."""

from __future__ import annotations

import os
import resource
import signal
from typing import Final

_PAGE: Final = resource.getpagesize()


def confine() -> None:
    """Drop the rights to write files and core dumps, and ignore signals that end a server: only the parent decides when
    such a process stops."""
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def discard_output() -> None:
    """Discard what libraries print: it may contain parts of the caller's input. Stdin becomes empty."""
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    os.close(silent)


def used_address_space() -> int:
    """Returns the address space that this process uses, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * _PAGE
