"""Counts the memory that large inputs of all requests use together: bodies, audio decoded to WAV, and media."""

from __future__ import annotations

import threading

from omni_gateway.errors import TooLargeError, UnavailableError


class Budget:
    """Bytes that all requests may hold together. Threads may share it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.left = total
        self.lock = threading.Lock()


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self._released = False

    def add(self, size: int) -> None:
        """Count further bytes; call it before they are kept.

        Raises UnavailableError if other requests hold too much, or if the share was released; TooLargeError if the
        request needs more than the whole budget.
        """
        with self._budget.lock:
            if self._held + size > self._budget.total:
                raise TooLargeError(
                    f"The request needs more than {self._budget.total} bytes of memory, the gateway's maxHeldBytes; "
                    "send smaller media, or fewer values."
                )
            if size > self._budget.left or self._released:
                raise UnavailableError("Too many large requests at once; try again.", retry_after_s=1)
            self._held += size
            self._budget.left -= size

    def release(self) -> None:
        """Note that the bytes are no longer in memory. A thread that still decodes for this request stops when it next
        calls `add`, which then raises."""
        with self._budget.lock:
            self._budget.left += self._held
            self._held = 0
            self._released = True
