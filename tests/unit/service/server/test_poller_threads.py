"""gRPC's poller thread is found by its name. This test fails if a new version of gRPC renames it."""

from __future__ import annotations

import os
import threading
from typing import Any

from omni_stage.process.startup import calm_pollers


async def test_the_poller_of_a_stage_server_does_not_interrupt_the_loop(kit: Any) -> None:
    await kit.serve()
    assert calm_pollers() == 1
    (poller,) = [thread for thread in threading.enumerate() if "_poll_wrapper" in thread.name]
    assert os.sched_getscheduler(poller.native_id or 0) == os.SCHED_BATCH
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER
