"""Lets the stage server's threads take a core as soon as they have work, without a larger share of the cores.

The event loop works for a fraction of a millisecond at a time: it reads a message, or passes a token on. When it wakes
up and every core is busy, it waits until the running thread's time slice is over (1.4 to 3 ms), and perhaps until other
waiting threads had theirs. Since Linux 6.12, a thread that asks for a shorter slice preempts a thread with a longer one
immediately, as long as it has used no more than its fair share. So the server's threads ask for short slices. An engine
on a CPU, which computes for milliseconds at a time, keeps the default, because it is forked from a process that started
before. An engine on a GPU is spawned and inherits short slices; it mostly waits for the GPU.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from omni_stage.process.scheduling import set_attributes

SLICE_NS: Final = 200_000

_log = logging.getLogger(__name__)


def wake_promptly() -> None:
    """Ask for short time slices for the calling thread, and for the threads that it starts later.

    Threads that prepare requests are among them on purpose: the event loop waits while one of them holds Python's
    interpreter lock. Nothing changes if the kernel or a seccomp profile refuses.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if not set_attributes(0, policy=os.sched_getscheduler(0), nice=nice, slice_ns=SLICE_NS):
        _log.info("the stage server keeps the default time slice: changing it is not possible here")
