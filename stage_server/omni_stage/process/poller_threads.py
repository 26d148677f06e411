"""gRPC's own threads: they hand results to the event loop, and need not interrupt it for each."""

from __future__ import annotations

import logging
import os
import threading

_POLLER = "_poll_wrapper"
"""In the name of the thread that grpc.aio (1.85, `completion_queue.pyx.pxi`) starts: it has no other mark."""

_log = logging.getLogger(__name__)


def calm_pollers() -> int:
    """Let gRPC's poller run beside the event loop's thread, never in its place. Returns how many threads it set.

    Every write wakes the poller, which on a machine without an idle core takes the core from the very thread that
    writes, for a few microseconds and two switches: a sixth of what a token costs (docs/performance.md). The kernel
    lets a thread of SCHED_BATCH wait until a core is idle or the running thread's slice is over. Call it once the
    first server or channel was made.
    """
    threads = [thread.native_id for thread in threading.enumerate() if _POLLER in thread.name]
    try:
        for number in filter(None, threads):
            os.sched_setscheduler(number, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log.info("gRPC's poller keeps its scheduling: %s", error.strerror)
        return 0
    return len(threads)
