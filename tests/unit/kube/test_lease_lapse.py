"""Leadership that expires during a renewal is reported as lost, even if the renewal succeeds right after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_kube.errors import NotFoundError, NotLeaderError, ServerError
from omni_kube.lease import Leadership, LeaseTimes
from support.processes.polling import PATIENCE_S

TIMES = LeaseTimes(duration_s=2, renew_deadline_s=1.0, retry_s=0.1)


class Server:
    """Accepts the first write. Then it rejects writes until at most 0.3 s of the leadership are left.

    It accepts the next write, but answers it only after leadership has expired.
    """

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
            while self.leadership.is_leader:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            with pytest.raises(NotLeaderError):
                self.leadership.ensure()
        self.taken += 1
        return body | {"metadata": body["metadata"] | {"resourceVersion": str(self.taken)}}


async def test_a_lapse_is_reported_so_that_refused_writes_are_repeated() -> None:
    """Leadership is reported as lost, and then as won again.

    The controller drops a pipeline whose write was refused with NotLeaderError. It queues all pipelines again when it
    wins the lease.
    """
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
    async with asyncio.timeout(PATIENCE_S):
        while server.taken < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    assert told == [True, False, True]
