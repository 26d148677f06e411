"""Limits the log lines about requests without a valid API key: the first is logged, then only their number, once a
period.

Anyone who can reach the gateway can send such requests as fast as it answers. A line for each would fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

PERIOD_S: Final = 60.0
Later = Callable[[float, Callable[[], None]], Any]
"""Calls a function after a number of seconds."""

log = logging.getLogger(__name__)


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, function)


class RefusedKeys:
    """Decides which requests without a valid key are logged. Use from one event loop."""

    def __init__(self, later: Later = _call_later) -> None:
        self._later = later
        self._unlogged = 0
        self._counting = False

    def note(self) -> bool:
        """Count a request. Returns whether to log it: the first one, and the first one after a period without any."""
        if self._counting:
            self._unlogged += 1
            return False
        self._counting = True
        self._later(PERIOD_S, self._summarize)
        return True

    def _summarize(self) -> None:
        count, self._unlogged = self._unlogged, 0
        self._counting = count > 0
        if count:
            log.warning("further requests without a valid API key", extra={"requests": count, "seconds": PERIOD_S})
            self._later(PERIOD_S, self._summarize)
