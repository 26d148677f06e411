"""yield_cores() sets the scheduling policy, priority and time slice of a process. The tests ask the kernel for them."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_stage.process.background import yield_cores
from omni_stage.service.media.worker_pool import DecoderProcess
from support.processes.polling import PATIENCE_S
from support.processes.time_slices import SLICES_ARE_SET, slice_ns

NICE = max(10, os.getpriority(os.PRIO_PROCESS, 0))


def session_nice(pid: int) -> int | None:
    """Returns the priority of a process's session; None if the kernel does not group processes by session."""
    try:
        return int(Path(f"/proc/{pid}/autogroup").read_text().split()[-1])
    except FileNotFoundError:
        return None


def assert_in_background(pid: int) -> None:
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICE
    if SLICES_ARE_SET:
        assert slice_ns(pid) == 100_000_000
        assert slice_ns(pid) > slice_ns(os.getpid())


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_the_kernel_takes_policy_priority_and_slice(sleeper: subprocess.Popen[bytes]) -> None:
    yield_cores(sleeper.pid)
    assert_in_background(sleeper.pid)


def test_a_session_is_lowered_with_its_leader() -> None:
    """Where Linux shares the cores among sessions first, the priority of a process counts only within its session."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        before = session_nice(os.getpid())
        deadline = time.monotonic() + PATIENCE_S
        # The kernel may refuse a call: all processes without privileges together may lower ten sessions a second.
        while session_nice(process.pid) not in (NICE, None) and time.monotonic() < deadline:
            yield_cores(process.pid)
            time.sleep(0.05)
        assert session_nice(process.pid) in (NICE, None)
        assert session_nice(os.getpid()) == before
        process.kill()


def test_a_process_does_not_lower_a_session_that_others_share(sleeper: subprocess.Popen[bytes]) -> None:
    before = session_nice(sleeper.pid)
    yield_cores(sleeper.pid)
    assert session_nice(sleeper.pid) == before


def test_a_thread_lowers_neither_its_process_nor_the_session() -> None:
    """Even where its process leads the session, as the first process of a container does."""
    code = """
import os, threading
from pathlib import Path
from omni_stage.process.background import yield_cores
def yields():
    yield_cores()
    print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=yields)
thread.start()
thread.join()
print(os.getpriority(os.PRIO_PROCESS, os.getpid()), os.getsid(0) == os.getpid())
file = Path("/proc/self/autogroup")
print(file.read_text().split()[-1] if file.exists() else "0")
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, start_new_session=True
    ).stdout
    assert said.split() == [str(NICE), str(os.getpriority(os.PRIO_PROCESS, 0)), "True", "0"]


def test_child_processes_are_in_the_background_too() -> None:
    """Child processes inherit the scheduling policy and the priority."""
    ask = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    code = f"""
import subprocess, sys
from omni_stage.process.background import yield_cores
yield_cores()
subprocess.run([sys.executable, "-c", {ask!r}], check=True)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(os.SCHED_BATCH), str(NICE)]


def test_a_refused_call_still_lowers_the_priority(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another processor architecture the number of the system call is unknown, so only the priority is set."""
    monkeypatch.setattr(platform, "machine", lambda: "sparc64")
    yield_cores(sleeper.pid)
    assert os.getpriority(os.PRIO_PROCESS, sleeper.pid) == NICE
    assert os.sched_getscheduler(sleeper.pid) == os.SCHED_OTHER


def test_a_process_that_has_ended_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    yield_cores(process.pid)


def test_a_decoder_is_in_the_background_before_it_imports_anything() -> None:
    worker = DecoderProcess.begin()
    process, ours = worker._process, worker._socket
    ours.setblocking(True)
    with ours, process:
        assert_in_background(process.pid)
        assert ours.recv(100) == b"ready"
        assert_in_background(process.pid)
        assert os.getsid(process.pid) == process.pid, "only a session of its own can be lowered"
        ours.shutdown(socket.SHUT_RDWR)
