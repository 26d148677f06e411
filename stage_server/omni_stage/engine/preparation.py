"""Limits how long the preparation of a request's input may take. The watchdog cannot do this, because it counts a
request only once the engine has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from omni_stage.engine.work import Work
from omni_stage.errors import PrepareTimeoutError

_T = TypeVar("_T")


class Preparation:
    """The preparation of one request, which ends when the engine core has the request. Used from one event loop."""

    def __init__(self, work: Work, limit_s: float | None) -> None:
        """`limit_s`: seconds from now; None sets no limit."""
        self._work = work
        self._limit_s = limit_s
        self._ends = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        self._scope: asyncio.Timeout | None = None

    async def within(self, coming: Awaitable[_T]) -> _T:
        """Returns the result of `coming`. Raises PrepareTimeoutError if the limit passes before the core has the
        request."""
        try:
            async with asyncio.timeout_at(self._ends) as self._scope:
                return await coming
        except TimeoutError as error:
            if self._scope is None or not self._scope.expired():
                raise
            raise PrepareTimeoutError(
                f"the request's input was not prepared within {self._limit_s:g} s (timeouts.prepare); send less",
                field="start.input",
                limit=f"{self._limit_s:g} s",
            ) from error
        finally:
            self._scope = None

    def submitted(self, *, compiles: bool = False) -> None:
        """Note that the core has the request. The limit ends, and the watchdog counts the request from now on.

        `compiles`: whether the core first compiles the form of the text. It compiles in threads, for up to minutes, and
        its steps continue meanwhile. So the watchdog counts such a request only from its first output on, when the
        caller calls `Work.begin`.
        """
        if not compiles:
            self._work.begin()
        self._ends = None
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(None)
