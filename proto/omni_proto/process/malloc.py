"""Sets options of glibc's allocator, for servers that handle large buffers. See mallopt(3)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3


def set_malloc_options(options: Mapping[int, int]) -> bool:
    """Set each option to its value. Call at start-up. Returns whether it worked; it needs glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    taken = [mallopt(option, value) == 1 for option, value in options.items()]
    return all(taken)
