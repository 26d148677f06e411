"""Watches the engine. If the engine dies, the stage ends. If the engine is stuck, the calls in flight end, new calls
are refused, and liveness fails.

The process of a stuck engine keeps running until kubelet or `omnipipe run` ends it, so that a person can inspect it.
Kubelet and `omnipipe run` read the cause in the termination message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from omni_proto.pod_contract import TerminationReason
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import EngineDeadStageError, StepTimeoutError
from omni_stage.process.termination import write_termination
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.server.health import StageHealth

POLL_S = 0.5

_log = logging.getLogger(__name__)


class EngineVerdict(Enum):
    """The result of checking the engine."""

    HEALTHY = auto()
    DEAD = auto()
    STUCK = auto()


def judge(*, is_dead: bool, unfinished: int, last_step: float, now: float, step_timeout_s: float) -> EngineVerdict:
    """Returns the verdict on an engine. An engine is stuck if it has unfinished requests, and no step for more than
    step_timeout_s seconds. `last_step` and `now` are monotonic seconds."""
    if is_dead:
        return EngineVerdict.DEAD
    if unfinished > 0 and now - last_step > step_timeout_s:
        return EngineVerdict.STUCK
    return EngineVerdict.HEALTHY


class Watchdog:
    """Checks one engine twice a second."""

    def __init__(
        self, engine: StageEngine, step_timeout_s: float, in_flight: InFlight, health: StageHealth, stage: str
    ) -> None:
        self._engine = engine
        self._step_timeout_s = step_timeout_s
        self._in_flight = in_flight
        self._health = health
        self._stage = stage

    async def run(self, on_death: Callable[[], Awaitable[None]]) -> None:
        """Watch until the engine is dead. Then end the stage's calls, await on_death and return."""
        stuck = False
        while True:
            verdict = judge(
                is_dead=self._engine.is_dead,
                unfinished=self._engine.unfinished_requests,
                last_step=self._engine.last_step_monotonic,
                now=time.monotonic(),
                step_timeout_s=self._step_timeout_s,
            )
            if verdict is EngineVerdict.DEAD:
                await self._on_dead()
                await on_death()
                return
            if verdict is EngineVerdict.STUCK and not stuck:
                stuck = True
                await self._on_stuck()
            await asyncio.sleep(POLL_S)

    async def _on_dead(self) -> None:
        error = EngineDeadStageError(f"the engine of stage {self._stage!r} died; the stage server restarts")
        ended = self._in_flight.fail_all(error)
        _log.critical("the engine is dead", extra={"calls_ended": ended})
        self._health.set_ready(False)
        self._health.set_alive(False)

    async def _on_stuck(self) -> None:
        error = StepTimeoutError(
            f"the engine of stage {self._stage!r} made no step for {self._step_timeout_s:g} s (timeouts.step)",
            limit=f"{self._step_timeout_s:g} s",
        )
        ended = self._in_flight.fail_all(error)
        # A new call would only wait for its deadline; another replica, or this stage after its restart, can serve it.
        self._in_flight.refuse()
        _log.critical("the engine makes no step", extra={"calls_ended": ended, "limit_s": self._step_timeout_s})
        write_termination(TerminationReason.STEP_TIMEOUT, str(error))
        self._health.set_ready(False)
        self._health.set_alive(False)
