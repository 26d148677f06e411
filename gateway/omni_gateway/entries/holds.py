"""Holds requests for a pipeline that sleeps, wakes it, and lets them go once it serves.

    request --> wait --+                          +--> sent
    request --> wait --+--> one task a pipeline --+--> sent
                            wake, watch, GetStage

The cluster's operator starts the pods. That a pipeline serves is known from its status, and then from its entry stage
itself: only when that answers GetStage are the requests let go. The same happens to a request that found no pod
although the pipeline's status still said that it serves, because it fell asleep at that moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import Pipelines, ServedPipeline
from omni_gateway.errors import GatewayError, ModelNotReadyError, RateLimitError, UnavailableError
from omni_gateway.settings import SleepSettings
from omni_gateway.telemetry import GatewayMetrics

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""Pause between two looks at the pipeline's status, which a watch keeps."""
WAKE_S: Final = 2.0
"""Pause between two attempts to wake a pipeline that still sleeps."""
PROBE_S: Final = 0.25
"""Pause between two attempts to reach an entry stage."""
GRACE_S: Final = 10.0
"""Time within which an entry stage must answer once the status reports that the pipeline serves."""
RETRY_AFTER_S: Final = 5.0
"""Pause that a client is asked for when the gateway holds too many requests."""


@dataclass(slots=True)
class _Wake:
    """A pipeline that requests wait for."""

    task: asyncio.Task[None]
    waiting: int = 0


class Holds:
    """The requests that wait for pipelines. Use from one event loop."""

    def __init__(
        self, settings: SleepSettings, pipelines: Pipelines, entries: Entries, metrics: GatewayMetrics
    ) -> None:
        self._settings = settings
        self._pipelines = pipelines
        self._entries = entries
        self._metrics = metrics
        self._wakes: dict[str, _Wake] = {}
        self._held: Counter[str] = Counter()

    async def wait(self, pipeline: ServedPipeline, holder: str, *, missed: bool = False) -> None:
        """Wait until a pipeline serves; at once unless it sleeps or wakes. Does not wake it for nothing: only a request
        that is held does.

        holder: the key's name, else the client's address. missed: the request reached no pod, so it waits even if the
        status reports that the pipeline serves. Raises ModelNotReadyError, RateLimitError, UnavailableError.
        """
        if not (pipeline.is_away or (missed and pipeline.scale_target)):
            return
        if self._held[holder] >= self._settings.max_held_per_key:
            raise RateLimitError(
                f"{self._held[holder]} of your requests wait for models that wake; try again.",
                retry_after_s=RETRY_AFTER_S,
            )
        if self._held.total() >= self._settings.max_held:
            raise UnavailableError(
                "Too many requests wait for models that wake; try again.", retry_after_s=RETRY_AFTER_S
            )
        name = pipeline.qualified
        wake = self._wakes.get(name)
        if wake is None or wake.task.done():
            wake = self._wakes[name] = _Wake(asyncio.ensure_future(self._wake(name)))
        wake.waiting += 1
        self._held[holder] += 1
        self._metrics.held.inc()
        try:
            async with asyncio.timeout(self._settings.held_seconds):
                await asyncio.shield(wake.task)
        except TimeoutError:
            raise ModelNotReadyError(
                f"The model {pipeline.id!r} did not start within {self._settings.held_seconds:.0f} s; try again.",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        finally:
            self._metrics.held.dec()
            self._held[holder] -= 1
            self._held += Counter()  # forgets holders without requests
            wake.waiting -= 1
            if not wake.waiting:
                wake.task.cancel()
                if self._wakes.get(name) is wake:
                    del self._wakes[name]

    async def _wake(self, name: str) -> None:
        """Wake a pipeline, until its entry stage answers. Raises GatewayError."""
        loop = asyncio.get_running_loop()
        asked_at: float | None = None
        failing_since: float | None = None
        while True:
            pipeline = next((one for one in self._pipelines.list_pipelines() if one.qualified == name), None)
            if pipeline is None or not pipeline.accepts:
                raise ModelNotReadyError(f"The model {name!r} takes no requests now.")
            if pipeline.is_away:
                failing_since = None
                if pipeline.asleep and (asked_at is None or loop.time() - asked_at >= WAKE_S):
                    asked_at = loop.time()
                    log.info("waking a pipeline", extra={"pipeline": name})
                    await self._pipelines.wake(pipeline)
                await asyncio.sleep(POLL_S)
                continue
            try:
                await self._entries.probe(pipeline)
            except GatewayError:
                failing_since = failing_since or loop.time()
                if loop.time() - failing_since > GRACE_S:
                    raise
                await asyncio.sleep(PROBE_S)
            else:
                return
