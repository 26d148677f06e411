"""Tunes glibc's allocator to return the memory of large buffers, such as a request's body, when they are freed.

By default, glibc soon takes buffers of up to 32 MiB from its heap. One small buffer behind them keeps their memory in
the process.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 1 << 20


def return_large_buffers() -> None:
    """Map each buffer of LARGE_BYTES or more separately. Call at start-up. Without glibc it has no effect."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
