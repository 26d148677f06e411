"""Leadership that expires during a renewal is reported as lost, even if the renewal succeeds right after."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omni_kube.errors import NotFoundError, NotLeaderError, ServerError
from omni_kube.lease import Leadership, LeaseTimes
from support.processes.polling import until

TIMES = LeaseTimes(duration_s=400, renew_deadline_s=300.0, retry_s=0.01)


class Server:
    """Accepts the first write and rejects the second, which takes 100 s. Leadership expires during the third, which it
    accepts. Nothing waits for these times: they pass by the event loop's clock alone, inside a call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leadership: Leadership
        self.writes = 0
        self._passed_s = 0.0
        loop = asyncio.get_running_loop()
        clock = loop.time
        monkeypatch.setattr(loop, "time", lambda: clock() + self._passed_s)

    async def call(self, verb: str, method: str, path: str, body: Any = None) -> Any:
        if body is None:
            raise NotFoundError("no lease", status=404, reason="NotFound")
        self.writes += 1
        if self.writes == 2:
            self._passed_s += 100.0
            raise ServerError("made up", status=500, reason="")
        if self.writes == 3:
            self._passed_s += self.leadership.ensure() - (TIMES.duration_s - TIMES.renew_deadline_s)
            with pytest.raises(NotLeaderError):
                self.leadership.ensure()
        return body | {"metadata": body["metadata"] | {"resourceVersion": str(self.writes)}}


async def test_a_lapse_is_reported_so_that_refused_writes_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership is reported as lost, and then as won again.

    The controller drops a pipeline whose write was refused with NotLeaderError. It queues all pipelines again when it
    wins the lease.
    """
    server, told = Server(monkeypatch), list[bool]()
    server.leadership = Leadership(
        server,  # type: ignore[arg-type]
        name="lease",
        namespace="ns",
        identity="a",
        on_change=told.append,
        times=TIMES,
    )
    running = asyncio.create_task(server.leadership.run())
    await until(lambda: server.writes == 4 or running.done())
    running.cancel()
    assert told == [True, False, True]
