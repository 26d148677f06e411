"""Threads that plan large requests before admission, and check media headers after it.

Nothing is reserved yet for a request that is being planned, so the number of such requests is bounded here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from omni_stage.errors import TooManyRequestsError
from omni_stage.service.guard.admission import RETRY_AFTER_S

THREADS: Final = 2

_T = TypeVar("_T")


class Planners:
    """The threads of a stage server. Used from one event loop."""

    def __init__(self, max_planning: int) -> None:
        """max_planning: maximum number of requests that are being planned or wait to be planned."""
        self._max_planning = max_planning
        self._planning = 0
        # A request waits for a thread here, and not in the executor: the executor would keep a cancelled request in its
        # queue until the request's turn.
        self._free = asyncio.Semaphore(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, "plan")

    async def plan(self, function: Callable[[], _T]) -> _T:
        """Returns the result of a function that plans a request. Raises TooManyRequestsError if too many wait.

        A caller that is cancelled while the function runs still waits until the function ends.
        """
        if self._planning >= self._max_planning:
            raise TooManyRequestsError(
                f"the stage plans at most {self._max_planning} large requests at a time; retry later",
                limit=f"{self._max_planning} requests being planned",
                retry_after_s=RETRY_AFTER_S,
            )
        self._planning += 1
        try:
            async with self._free:
                running = asyncio.get_running_loop().run_in_executor(self._threads, function)
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    # The thread uses the request's memory until it has ended.
                    await asyncio.wait([running])
                    raise
        finally:
            self._planning -= 1

    async def check(self, function: Callable[..., _T], *args: Any) -> _T:
        """Returns the result of a function that checks an admitted request. It waits for at most THREADS plans."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def shutdown(self) -> None:
        """Start no further function."""
        self._threads.shutdown(wait=False)
