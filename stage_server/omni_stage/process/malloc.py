"""Tunes glibc's allocator to reuse the buffers of tensor chunks.

Page faults on fresh buffers would make sending tensors to the next stage up to 1.7 times slower.
"""

from __future__ import annotations

import logging
from typing import Final

from omni_proto.runtime.process import M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, set_malloc_options

_OPTIONS: Final = {M_MMAP_THRESHOLD: 1 << 30, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 64 << 20}

_log = logging.getLogger(__name__)


def tune_malloc() -> bool:
    """Keep freed buffers in the process. Call once at start-up. Returns whether it worked: False without glibc."""
    tuned = set_malloc_options(_OPTIONS)
    if not tuned:
        _log.info("malloc is not tuned: the C library does not take mallopt's options")
    return tuned
