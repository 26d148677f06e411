"""What a stage server checks and sets in its process at start-up: ports, protobuf, malloc, and gRPC's threads."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from google.protobuf.internal import api_implementation

from omni_proto.runtime.connections import explain_taken, open_listener
from omni_proto.runtime.process import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, set_malloc_options
from omni_proto.stage_config import Listen
from omni_stage.errors import ConfigurationError


def check_ports(listen: Listen) -> None:
    """Raises ConfigurationError if a port is taken. Called before the engine loads, which takes minutes."""
    ports = {"grpcPort": listen.grpc_port, "healthPort": listen.health_port, "metricsPort": listen.metrics_port}
    for name, port in ports.items():
        field = f"listen.{name}"
        same = [other for other, value in ports.items() if value == port and port]
        if len(same) > 1:
            raise ConfigurationError(f"listen: {' and '.join(same)} are both {port}; give each its own", field=field)
        try:
            open_listener(listen.host, port).close()
        except OSError as error:
            raise ConfigurationError(f"{field}: {explain_taken(error, listen.host, port)}", field=field) from error


VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
BOUNDED = "upb"
"""The implementation whose limits the tests cover: at most 100 levels of nesting, and memory in proportion to a
message's bytes."""


def require_upb(found: str | None = None) -> None:
    """Raises ConfigurationError unless protobuf is implemented by upb.

    `found` overrides the name of the loaded implementation. An environment variable or a wheel without binaries selects
    protobuf's pure Python implementation. That one is eighty times slower (it decodes a chat of eight messages in
    480 us), and decoding blocks the event loop.
    """
    found = api_implementation.Type() if found is None else found
    if found == BOUNDED:
        return
    given = os.environ.get(VARIABLE)
    remedy = f"unset {VARIABLE} (it is {given!r})" if given else "install protobuf from its binary wheel"
    raise ConfigurationError(
        f"protobuf's implementation is {found!r}, and a stage server accepts only {BOUNDED!r}; {remedy}", field=VARIABLE
    )


_OPTIONS: Final = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 64 << 20}


def tune_malloc() -> bool:
    """Make glibc reuse the buffers of tensor chunks. Call once at start-up. Returns False without glibc.

    Page faults on fresh buffers would make sending tensors to the next stage up to 1.7 times slower.
    """
    tuned = set_malloc_options(_OPTIONS)
    if not tuned:
        _log.info("malloc is not tuned: the C library does not take mallopt's options")
    return tuned


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
