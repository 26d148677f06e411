"""Leadership that runs out while its renewal is under way: it was lost, however soon it is back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_kube.errors import NotFoundError, NotLeaderError, ServerError
from omni_kube.lease import Leadership, LeaseTimes

TIMES = LeaseTimes(duration_s=2, renew_deadline_s=1.0, retry_s=0.1)


class Server:
    """Takes the first write; then fails, until it takes one that it answers only when leadership has run out."""

    def __init__(self) -> None:
        self.leadership: Leadership
        self.taken = 0

    async def call(self, verb: str, method: str, path: str, body: Any = None) -> Any:
        if body is None:
            raise NotFoundError("no lease", status=404, reason="NotFound")
        if self.taken == 1:
            left_s = self.leadership.ensure() - (TIMES.duration_s - TIMES.renew_deadline_s)
            if left_s > 0.3:
                raise ServerError("made up", status=500, reason="")
            while self.leadership.is_leader:  # noqa: ASYNC110 - as slow as it has to be
                await asyncio.sleep(0.01)
            with pytest.raises(NotLeaderError):
                self.leadership.ensure()
        self.taken += 1
        return body | {"metadata": body["metadata"] | {"resourceVersion": str(self.taken)}}


async def test_a_lapse_is_told_so_that_what_was_refused_meanwhile_is_done_again() -> None:
    """The controller drops a pipeline whose write was refused: winning the lease names all of them again."""
    server, told = Server(), list[bool]()
    server.leadership = Leadership(
        server,  # type: ignore[arg-type]
        name="lease",
        namespace="ns",
        identity="a",
        on_change=told.append,
        times=TIMES,
    )
    running = asyncio.create_task(server.leadership.run())
    async with asyncio.timeout(20):
        while server.taken < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    assert told == [True, False, True]
