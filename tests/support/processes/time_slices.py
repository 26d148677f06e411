"""Reads the time slice of a thread from the kernel."""

from __future__ import annotations

import ctypes
import platform
import struct

GET = {"x86_64": 315, "aarch64": 275}
"""Numbers of the system call sched_getattr(2)."""
SLICES_ARE_SET = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 12)
"""Whether this Linux lets a thread set its time slice."""


def slice_ns(thread: int) -> int:
    """Returns the time slice of a thread or of a process's main thread, as sched_getattr(2) reports it."""
    attributes = ctypes.create_string_buffer(48)
    result = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(GET[platform.machine()]), thread, attributes, ctypes.c_uint(48), ctypes.c_uint(0)
    )
    assert result == 0, ctypes.get_errno()
    return int(struct.unpack("=IIQiIQQQ", attributes.raw)[5])
