"""Orderly shutdown: the stage reports NOT_SERVING but still accepts calls. After a while it refuses new calls, and
waits for the calls in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from omni_stage.errors import DrainingError
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.server.health import StageHealth

_log = logging.getLogger(__name__)


async def drain(
    health: StageHealth,
    in_flight: InFlight,
    *,
    close_port: Callable[[], None],
    notice_s: float,
    grace_s: float,
    abort: asyncio.Event,
) -> bool:
    """Drain the stage. `abort` (a second signal) cuts the drain short. Returns whether every call ended by itself.

    1. Report NOT_SERVING and wait notice_s seconds: load balancers stop sending calls; late calls are still served.
    2. Refuse new calls (DRAINING, which callers retry elsewhere), and call `close_port`: every connection ends with its
       last call. Behind a Service, a client without health checks would otherwise retry on this pod.
    3. Wait at most grace_s seconds for the calls in flight. Calls still in flight after that end with DRAINING.
    """
    health.set_ready(False)
    _log.info("draining: not ready, still accepting", extra={"notice_s": notice_s, "calls": len(in_flight)})
    if not await _wait_for(abort, notice_s):
        in_flight.refuse()
        close_port()
        _log.info("draining: refusing new calls", extra={"grace_s": grace_s, "calls": len(in_flight)})
        if await _idle_or_abort(in_flight, grace_s, abort):
            _log.info("drained")
            return True
    in_flight.refuse()
    ended = in_flight.fail_all(DrainingError("the stage shut down before the request ended"))
    _log.warning("drain was cut short", extra={"calls_ended": ended, "aborted": abort.is_set()})
    await in_flight.wait_idle(1.0)
    return ended == 0


async def _wait_for(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _idle_or_abort(in_flight: InFlight, timeout_s: float, abort: asyncio.Event) -> bool:
    idle = asyncio.create_task(in_flight.wait_idle(timeout_s))
    aborted = asyncio.create_task(abort.wait())
    try:
        done, _ = await asyncio.wait({idle, aborted}, return_when=asyncio.FIRST_COMPLETED)
        return idle in done and idle.result()
    finally:
        idle.cancel()
        aborted.cancel()
