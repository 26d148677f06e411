"""Tunes glibc's allocator to return the memory of large buffers, such as a request's body, when they are freed.

By default, glibc raises its threshold for separate mappings when it frees one, up to 32 MiB. It takes smaller buffers
from its heap, where one small buffer behind them keeps their memory in the process.
"""

from __future__ import annotations

from typing import Final

from omni_proto.process.malloc import M_MMAP_THRESHOLD, set_malloc_options

LARGE_BYTES: Final = 1 << 20


def return_large_buffers() -> None:
    """Map each buffer of LARGE_BYTES or more separately. Call at start-up. Without glibc it has no effect."""
    set_malloc_options({M_MMAP_THRESHOLD: LARGE_BYTES})
