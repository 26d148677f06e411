"""Makes a background process yield its core immediately to the other processes of its pod, without starving it.

A low priority only reduces the background process's share of a core. Another process that wakes up on that core still
waits until the running time slice ends (1.4 to 3 ms). A token needs half a dozen wake-ups on its way to the client. So
the background process also asks for slices of 100 ms. Since Linux 6.12, any task with a shorter slice, which means
every other task, preempts the background process immediately. The background process still gets a tenth of a core that
others use fully. SCHED_IDLE would leave it 0.3 %, and a process without capabilities cannot leave that policy again.

Outside of containers, Linux may share the cores among sessions before it looks at priorities (`autogroup`, sched(7)). A
background process then needs a session of its own, and that session needs a low priority too. In a container, this
changes nothing.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from omni_stage.process.scheduling import set_attributes

_NICE: Final = 10
_SLICE_NS: Final = 100_000_000
"""The longest slice that Linux allows. Versions before 6.12 ignore it."""

_log = logging.getLogger(__name__)


def yield_cores(pid: int) -> None:
    """Make process `pid` (0: the calling thread), and the processes that it starts later, run behind all others.

    If `pid` leads its session, the session is lowered too. The kernel lets processes without privileges do so ten times
    a second, all of them together: repeat the call to make sure.

    If the kernel or a seccomp profile refuses the slice, only the priority is lowered. A process that has ended is
    not an error.
    """
    try:
        nice = max(_NICE, os.getpriority(os.PRIO_PROCESS, pid))
        if not set_attributes(pid, policy=os.SCHED_BATCH, nice=nice, slice_ns=_SLICE_NS):
            os.setpriority(os.PRIO_PROCESS, pid, nice)
        if os.getsid(pid) == (pid or os.getpid()):
            _lower_session(pid or os.getpid(), nice)
    except ProcessLookupError:
        return
    except PermissionError:
        _log.info("a background process keeps its priority: lowering it is not permitted", extra={"pid": pid})


def _lower_session(pid: int, nice: int) -> None:
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
    except FileNotFoundError:
        # The process has ended, or the kernel has no such groups.
        return
    except OSError as error:
        # EAGAIN: the kernel limits how often. Or /proc is read-only, or writing is not permitted.
        _log.debug("a background session keeps its priority: %s", error, extra={"pid": pid})
