"""Prepares the input of requests in threads, and limits how long that may take.

The watchdog cannot do the latter, because it counts a request only once the engine has it.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final, TypeVar

from omni_stage.engine.work import Work
from omni_stage.errors import EngineDeadStageError, PrepareTimeoutError
from omni_stage.models.component import EdgeInput, StageRequest, UserPrompt

LIGHT_THREADS: Final = 4
CHARS_PER_S: Final = 200_000
"""How much text a busy core tokenizes in a second, at least."""

_T = TypeVar("_T")


class Preparers:
    """The threads that prepare requests. Used from one event loop.

    A prompt with little text never waits for one with much: each kind has its own threads. Of the others, the one goes
    first whose time of arrival plus its own cost is earliest, so that shorter ones pass longer ones, and none waits for
    ever. A caller that leaves while its request waits costs nothing.
    """

    def __init__(self, heavy_threads: int | None = None) -> None:
        self._heavy_free = heavy_threads or max(1, min(4, (os.cpu_count() or 1) // 2))
        self._light = ThreadPoolExecutor(LIGHT_THREADS, "prepare")
        self._heavy = ThreadPoolExecutor(self._heavy_free, "prepare-long")
        self._light_free = asyncio.Semaphore(LIGHT_THREADS)
        """Threads that are free. A thread whose caller has left is free only once its function has ended."""
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._ended = False

    async def run(self, function: Callable[[StageRequest], _T], request: StageRequest) -> _T:
        """Returns the result of a function that prepares a request. Raises EngineDeadStageError after `shutdown`."""
        source = request.source.context if isinstance(request.source, EdgeInput) else request.source
        if not isinstance(source, UserPrompt) or source.is_light:
            await self._light_free.acquire()
            threads, free = self._light, self._light_free.release
        else:
            await self._take_heavy(source.chars)
            threads, free = self._heavy, self._free_heavy
        if self._ended:
            raise EngineDeadStageError("the engine has ended")
        running = asyncio.get_running_loop().run_in_executor(threads, function, request)
        running.add_done_callback(lambda done: (done.cancelled() or done.exception(), free()))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():  # by `shutdown`, and not by the caller
                raise EngineDeadStageError("the engine has ended") from None
            raise

    def shutdown(self) -> None:
        """Start no further function, and end what waits. Idempotent."""
        self._ended = True
        for _, _, turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._light.shutdown(wait=False, cancel_futures=True)
        self._heavy.shutdown(wait=False, cancel_futures=True)

    async def _take_heavy(self, chars: int) -> None:
        if self._heavy_free:
            self._heavy_free -= 1
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._waiting, (loop.time() + chars / CHARS_PER_S, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free_heavy()
            raise

    def _free_heavy(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._heavy_free += 1


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
