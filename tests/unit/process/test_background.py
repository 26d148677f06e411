"""yield_cores() sets the scheduling policy, priority and time slice of a process. The tests ask the kernel for them."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from omni_stage.process.background import yield_cores
from omni_stage.service.media.decoder_process import spawn_decoder

GET = {"x86_64": 315, "aarch64": 275}
"""Numbers of the system call sched_getattr(2)."""
NICE = max(10, os.getpriority(os.PRIO_PROCESS, 0))
CUSTOM_SLICES = (6, 12)
"""The first Linux version in which a process can set its time slice."""


def slice_ns(pid: int) -> int:
    """Returns the time slice of a process, as sched_getattr(2) reports it."""
    attributes = ctypes.create_string_buffer(48)
    result = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(GET[platform.machine()]), pid, attributes, ctypes.c_uint(48), ctypes.c_uint(0)
    )
    assert result == 0, ctypes.get_errno()
    return int(struct.unpack("=IIQiIQQQ", attributes.raw)[5])


def assert_in_background(pid: int) -> None:
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, pid) == NICE
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version >= CUSTOM_SLICES:
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


def test_child_processes_are_in_the_background_too() -> None:
    """Child processes inherit the scheduling policy and the priority."""
    ask = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    code = f"""
import subprocess, sys
from omni_stage.process.background import yield_cores
yield_cores(0)
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
    process, ours = spawn_decoder()
    with ours, process:
        assert_in_background(process.pid)
        assert ours.recv(100) == b"ready"
        assert_in_background(process.pid)
        ours.shutdown(socket.SHUT_RDWR)
