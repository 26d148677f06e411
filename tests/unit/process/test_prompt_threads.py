"""wake_promptly() sets the time slice of the stage server's threads. The tests ask the kernel for it."""

from __future__ import annotations

import os
import platform
import threading

import pytest

from omni_stage.process.prompt_threads import SLICE_NS, wake_promptly
from support.processes.time_slices import SLICES_ARE_SET, slice_ns


def in_thread(*calls: object) -> list[object]:
    """Returns the results of functions that a new thread calls, so that this thread keeps its slice."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.extend(call() for call in calls if callable(call)))
    thread.start()
    thread.join()
    return results


def own_slice() -> int:
    return slice_ns(threading.get_native_id())


def test_the_thread_and_those_that_it_starts_get_short_slices() -> None:
    before, _, own, (inherited,) = in_thread(own_slice, wake_promptly, own_slice, lambda: in_thread(own_slice))
    expected = SLICE_NS if SLICES_ARE_SET else before
    assert own == inherited == expected
    assert own_slice() == before, "other threads keep theirs"


def test_policy_and_priority_stay() -> None:
    def read() -> tuple[int, int]:
        number = threading.get_native_id()
        return os.sched_getscheduler(number), os.getpriority(os.PRIO_PROCESS, number)

    before, _, after = in_thread(read, wake_promptly, read)
    assert before == after


def test_a_refused_call_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another processor architecture the number of the system call is unknown."""
    before = own_slice()
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "sparc64")
        wake_promptly()
    assert own_slice() == before
