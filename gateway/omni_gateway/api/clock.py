"""The wall clock, only for timestamps in answers. Deadlines and limits use a monotonic clock."""

from __future__ import annotations

import time


def unix_seconds() -> int:
    """Returns the seconds since the epoch."""
    return int(time.time())
