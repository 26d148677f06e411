"""Makes a process yield the cores to the others of its pod at once, without starving it.

A low priority alone decides only about shares: a process that computes keeps its core for the rest of its slice (1.4 to
3 ms) when another one wakes up beside it, and a token passes through half a dozen wake-ups on its way to the client. So
the process also asks for slices of 100 ms. Linux 6.12 and later let a task with a shorter slice, which is any other,
preempt it at once. It still gets its share: a tenth of a core that others use fully. SCHED_IDLE would leave it 0.3 %,
with no way back for a process without capabilities.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import struct
from typing import Final

_NICE: Final = 10
_SLICE_NS: Final = 100_000_000
"""The longest that Linux allows. Earlier versions than 6.12 ignore it."""
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2), which neither Python nor older C libraries wrap."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime (the slice), deadline, period."""

_log = logging.getLogger(__name__)


def yield_cores(pid: int) -> None:
    """Make process `pid` (0: the calling thread), and what it starts later, run behind all others.

    Where the kernel or a seccomp profile refuses the slice, the priority alone is lowered. A process that has ended is
    no error.
    """
    try:
        nice = max(_NICE, os.getpriority(os.PRIO_PROCESS, pid))
        if not _set_attributes(pid, nice):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
    except ProcessLookupError:
        return
    except PermissionError:
        _log.info("a background process keeps its priority: lowering it is not permitted", extra={"pid": pid})


def _set_attributes(pid: int, nice: int) -> bool:
    """Returns whether the kernel took policy, priority and slice. Raises ProcessLookupError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_BATCH, 0, nice, 0, _SLICE_NS, 0, 0)
    system = ctypes.CDLL(None, use_errno=True)
    if system.syscall(ctypes.c_long(number), ctypes.c_int(pid), attributes, ctypes.c_uint(0)) == 0:
        return True
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(pid)
    return False
