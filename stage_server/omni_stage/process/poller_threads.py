"""Lowers the scheduling of gRPC's own threads, which pass results to the event loop and would interrupt it for each."""

from __future__ import annotations

import logging
import os
import threading

_POLLER = "_poll_wrapper"
"""Part of the name of the thread that grpc.aio (1.85, `completion_queue.pyx.pxi`) starts: its only identification."""

_log = logging.getLogger(__name__)


def calm_pollers() -> int:
    """Keep gRPC's poller from preempting the event loop's thread. Returns the number of threads that it changed.

    Every write wakes the poller. On a machine without an idle core it then takes the core from the thread that
    writes, for a few microseconds and two switches: a sixth of a token's cost (docs/performance.md). The kernel
    lets a thread of SCHED_BATCH wait until a core is idle or the running thread's slice is over. Call it after
    the first server or channel was made.
    """
    threads = [thread.native_id for thread in threading.enumerate() if _POLLER in thread.name]
    try:
        for number in filter(None, threads):
            os.sched_setscheduler(number, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log.info("gRPC's poller keeps its scheduling: %s", error.strerror)
        return 0
    return len(threads)
