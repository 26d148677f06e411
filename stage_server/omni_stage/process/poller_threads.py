"""Keeps gRPC's own threads, which pass results to the event loop, from preempting the loop for every result."""

from __future__ import annotations

import logging
import os
import threading

_POLLER = "_poll_wrapper"
"""Part of the name of the thread that grpc.aio 1.85 starts (`completion_queue.pyx.pxi`). The thread can be found only
by this name."""

_log = logging.getLogger(__name__)


def calm_pollers() -> int:
    """Keep gRPC's poller from preempting the event loop's thread. Returns the number of pollers; 0 if one refuses.

    Every write wakes the poller. While no core is idle, the poller takes the core from the writing thread for a few
    microseconds. On two busy cores, these preemptions, with two context switches each, took about 15 % of a token's
    processor time (docs/performance). A SCHED_BATCH thread waits until a core is idle or the running thread's
    slice is over. Call this after the first server or channel was created.
    """
    threads = [thread.native_id for thread in threading.enumerate() if _POLLER in thread.name]
    try:
        for number in filter(None, threads):
            os.sched_setscheduler(number, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        _log.info("gRPC's poller keeps its scheduling: %s", error.strerror)
        return 0
    return len(threads)
