"""The wall clock, for the fields of answers that name a time. Nothing here ends or expires by it."""

from __future__ import annotations

import time


def unix_seconds() -> int:
    """Returns the seconds since the epoch."""
    return int(time.time())
