"""What a process sets for itself: a worker gives up rights at its start, a server sets options of glibc's allocator.

A worker that handles a caller's input may be killed by its parent. Unix only.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Final

_PAGE: Final = resource.getpagesize()
_PR_SET_PDEATHSIG: Final = 1
# Looked up before any fork: between fork and exec only async-signal-safe functions may be called.
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


READY: Final = b"ready"
"""What a worker sends first: it can take jobs."""
PACKET_BYTES: Final = 128 << 10
"""Longest packet between a worker and its parent."""


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


class ParentDeathSignal:
    """Called in a child (preexec_fn of Popen, or after a fork): asks the kernel to kill it when the parent dies.

    If the parent is already dead, the child exits. The parent is the thread that started the child.
    """

    def __init__(self, parent: int) -> None:
        """parent: the parent's process id."""
        self.parent = parent

    def __call__(self) -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self.parent:
            os._exit(1)


SWITCH_S: Final = 0.0005
"""Seconds for which another thread may keep the interpreter lock while the event loop waits for the lock. Python's
default of 5 ms would delay every wake-up of the loop while such a thread works, and thus every token of all requests.
"""


def prefer_event_loop() -> None:
    """Set SWITCH_S. Call it in a process whose threads work beside an event loop."""
    sys.setswitchinterval(SWITCH_S)


M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3


def set_malloc_options(options: Mapping[int, int]) -> bool:
    """Set each option to its value. Call at start-up. Returns whether it worked; it needs glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    taken = [mallopt(option, value) == 1 for option, value in options.items()]
    return all(taken)
