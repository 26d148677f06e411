"""Sets how Linux schedules a process or a thread: policy, niceness and time slice (sched_setattr(2))."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Final

_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2), which neither Python nor older C libraries wrap."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime (the slice), deadline, period."""


def set_attributes(pid: int, *, policy: int, nice: int, slice_ns: int) -> bool:
    """Returns whether the kernel accepted policy, niceness and slice for process or thread `pid` (0: this thread).

    Linux before 6.12 accepts a slice and ignores it. Raises ProcessLookupError.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, slice_ns, 0, 0)
    system = ctypes.CDLL(None, use_errno=True)
    if system.syscall(ctypes.c_long(number), ctypes.c_int(pid), attributes, ctypes.c_uint(0)) == 0:
        return True
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(pid)
    return False
