"""Makes a background process yield its core immediately to the other processes of its pod, without starving it.

A low priority only reduces the background process's share of a core. Another process that wakes up on that core still
waits until the running time slice ends (1.4 to 3 ms). A token needs half a dozen wake-ups on its way to the client. So
the background process also asks for slices of 100 ms. Since Linux 6.12, any task with a shorter slice, which means
every other task, preempts the background process immediately. The background process still gets a tenth of a core that
others use fully. SCHED_IDLE would leave it 0.3 %, and a process without capabilities cannot leave that policy again.
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
"""The longest slice that Linux allows. Versions before 6.12 ignore it."""
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2), which neither Python nor older C libraries wrap."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime (the slice), deadline, period."""

_log = logging.getLogger(__name__)


def yield_cores(pid: int) -> None:
    """Make process `pid` (0: the calling thread), and the processes that it starts later, run behind all others.

    If the kernel or a seccomp profile refuses the slice, only the priority is lowered. A process that has ended is
    not an error.
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
    """Returns whether the kernel accepted policy, priority and slice. Raises ProcessLookupError."""
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
