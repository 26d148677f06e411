"""Makes a background process yield its core immediately to other processes of its pod, but still get some of the core.

A low priority only reduces the background process's share of a core. Another process that wakes up on that core still
waits until the running time slice ends (1.4 to 3 ms). Threads and processes must wake up in turn, about six times,
before a token reaches the client. So the background process also requests slices of 100 ms. Since Linux 6.12, a task
with a shorter slice, such as every other task of the pod, preempts the background process immediately. The
background process still gets a tenth of a core that others use fully. Under SCHED_IDLE it would get 0.3 %, and a
process without capabilities cannot leave that policy.

Outside of containers, Linux may share the cores among sessions first, and among the processes of a session after that
(`autogroup`, sched(7)). A background process then needs a session of its own, and that session needs a low priority
too. In a container, the priority of a session has no effect.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import struct
import threading
from pathlib import Path
from typing import Final

_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2), which neither Python nor older C libraries wrap."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""struct sched_attr, version 0: size, policy, flags, nice, priority, runtime (the slice), deadline, period."""
_NICE: Final = 10
_SLICE_NS: Final = 100_000_000
"""The longest slice that Linux allows. Linux versions before 6.12 ignore the slice."""

_log = logging.getLogger(__name__)


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


def yield_cores(pid: int | None = None) -> None:
    """Lower the priority of process `pid` (None: the calling thread) and of the processes that it starts later.

    If process `pid` leads its session, the priority of the session is lowered too; a thread leaves it as it is, unless
    it is the leader's main thread. The kernel permits ten such changes of
    sessions per second to all processes without privileges together, and refuses further ones. So a caller that must be
    sure repeats the call later.

    If the kernel or a seccomp profile refuses the slice, only the priority is lowered. If the process has ended,
    nothing happens.
    """
    pid = threading.get_native_id() if pid is None else pid
    try:
        nice = max(_NICE, os.getpriority(os.PRIO_PROCESS, pid))
        if not set_attributes(pid, policy=os.SCHED_BATCH, nice=nice, slice_ns=_SLICE_NS):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
        if os.getsid(pid) == pid:
            _lower_session(pid, nice)
    except ProcessLookupError:
        return
    except PermissionError:
        _log.info("a background process keeps its priority: lowering it is not permitted", extra={"pid": pid})


def _lower_session(pid: int, nice: int) -> None:
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
    except FileNotFoundError:
        # The process has ended, or the kernel was built without autogroups.
        return
    except OSError as error:
        # The kernel permits no further change now (EAGAIN), /proc is read-only, or writing is not permitted.
        _log.debug("a background session keeps its priority: %s", error, extra={"pid": pid})
