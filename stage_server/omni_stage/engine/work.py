"""Which requests an engine has work for, and when it last gave an output. The watchdog reads both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omni_stage.errors import InvalidRequestError


@dataclass(slots=True)
class Work:
    """One request. It is busy while the engine has work for it and the caller waits for the result.

    The watchdog ignores a request that is being prepared, that waits for streamed input, or that has a step which the
    caller still handles. The engine does not hang only because a caller reads slowly.
    """

    ledger: WorkLedger
    request_id: str
    _has_input: bool = False
    _is_lent: bool = False

    def begin(self) -> None:
        """Note that the engine has work for the request. Idempotent."""
        self._has_input = True
        self._update()

    def rest(self) -> None:
        """Note that the engine waits for the request's input. Idempotent."""
        self._has_input = False
        self._update()

    def lend(self) -> None:
        """Note that the caller has a step of the request. The caller may keep the step for any time."""
        self._is_lent = True
        self._update()

    def take_back(self) -> None:
        """Note that the caller asks for the next step."""
        self._is_lent = False
        self._update()

    def _update(self) -> None:
        self.ledger.set_busy(self.request_id, self._has_input and not self._is_lent)


class WorkLedger:
    """The requests of one engine. Used from one event loop."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._busy: set[str] = set()
        self.last_step = time.monotonic()
        """time.monotonic() of the last output of any request, or of the first work after the engine was idle."""

    def __len__(self) -> int:
        """Returns the number of requests that the engine has work for."""
        return len(self._busy)

    def note_step(self) -> None:
        """Note that the engine gave an output."""
        self.last_step = time.monotonic()

    @contextmanager
    def open(self, request_id: str) -> Iterator[Work]:
        """Yields a request that is not busy yet. Raises InvalidRequestError if its id is in use."""
        if request_id in self._open:
            raise InvalidRequestError(f"request id {request_id!r} is in use; use unique ids")
        self._open.add(request_id)
        work = Work(self, request_id)
        try:
            yield work
        finally:
            self._open.discard(request_id)
            self._busy.discard(request_id)

    def set_busy(self, request_id: str, busy: bool) -> None:
        """Set whether a request counts as work of the engine."""
        if not busy:
            self._busy.discard(request_id)
        elif request_id not in self._busy:
            if not self._busy:
                self.last_step = time.monotonic()
            self._busy.add(request_id)


class PartClock:
    """Seconds of each part of the start: what a slow start was spent on."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._begin = time.monotonic()

    def end(self, part: str) -> None:
        """Note the end of a part, which began when the part before it ended."""
        now = time.monotonic()
        self.parts[part] = round(now - self._begin, 2)
        self._begin = now
