"""Handlers that kopf calls: the login, the events of OmniPipelines (which go to the store and the queue), the cleanup.

`on.event` is the only one of kopf's event handlers that is used, because it adds no annotation and no finalizer to any
object. kopf manages the process (signals, exit) and a watch with re-authentication. kopf does not report deletions that
happened while it was disconnected, so every resync compares the known pipelines with a new list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Protocol, cast

import kopf

from omni_operator.kinds import PIPELINES
from omni_operator.process.settings import OperatorSettings
from omni_operator.process.watches import WATCH_TIMEOUT_S, last_call_refused

_log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 5.0
LONGEST_REFUSED_PAUSE_S = 30.0
"""Longest pause while the API server answers 403: a person must first restore a namespace or a role."""


class EndlessBackoffs:
    """Infinite sequence of pauses before kopf's next attempt, in seconds. kopf exits when a finite sequence
    ends."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            # kopf asks for the pause in the task that received the answer, so last_call_refused is about that answer.
            yield min(pause, LONGEST_REFUSED_PAUSE_S if last_call_refused() else LONGEST_PAUSE_S)
            pause = min(LONGEST_REFUSED_PAUSE_S, pause * 2)


class NoDiffBase(kopf.DiffBaseStorage):
    """Neither stores nor computes a last-handled state. Otherwise kopf copies every object several times, for a diff
    that no handler uses."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Returns an empty essence: no field of the object is compared."""
        return cast(kopf.BodyEssence, {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Returns None: no essence was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Do nothing: no essence is stored."""


class PipelineWatcher(Protocol):
    """Receives what the handlers get from kopf."""

    def new_kopf_session(self) -> kopf.AiohttpSession:
        """Returns credentials for kopf's own calls."""

    def pipeline_seen(self, event_type: str | None, manifest: dict[str, Any]) -> None:
        """Process an event of kopf's watch, or an item of its list (type None)."""

    async def stop(self) -> None:
        """End all work, because the process ends."""


def build_kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """Returns kopf's settings: no peering (a Lease decides leadership), no Events by kopf, no scanning of CRDs."""
    result = kopf.OperatorSettings()
    result.peering.standalone = True
    result.posting.enabled = False
    result.scanning.disabled = True
    result.networking.error_backoffs = EndlessBackoffs()
    result.networking.request_timeout = 30
    result.networking.connect_timeout = 5
    result.watching.server_timeout = WATCH_TIMEOUT_S
    result.watching.client_timeout = WATCH_TIMEOUT_S + 15
    result.watching.connect_timeout = 5
    result.watching.chunk_size = 500
    # A limit would count objects instead of running work: an idle worker keeps its slot for idle_timeout.
    result.queueing.worker_limit = None
    result.queueing.idle_timeout = 1.0
    result.persistence.diffbase_storage = NoDiffBase()
    result.process.ultimate_exiting_timeout = 30
    return result


def build_registry(watcher: PipelineWatcher, stop: asyncio.Event) -> kopf.OperatorRegistry:
    """Returns a new registry with kopf's handlers. The cleanup handler sets stop when kopf ends."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: object) -> kopf.AiohttpSession:
        return watcher.new_kopf_session()

    @kopf.on.event(PIPELINES.group, PIPELINES.api_version.rpartition("/")[2], PIPELINES.plural, registry=registry)
    async def on_pipeline_event(event: Any, **_: object) -> None:
        watcher.pipeline_seen(event["type"], event["object"])

    @kopf.on.cleanup(registry=registry)
    async def clean_up(**_: object) -> None:
        await watcher.stop()
        # kopf handles signals itself. kopf's task that waits for stop would otherwise delay the exit by 5 s.
        stop.set()

    return registry


async def run_kopf(settings: OperatorSettings, watcher: PipelineWatcher, stop: asyncio.Event) -> None:
    """Run kopf until SIGTERM, SIGINT or stop. Raises the error if anything else ended it."""
    await kopf.operator(
        registry=build_registry(watcher, stop),
        settings=build_kopf_settings(settings),
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        stop_flag=stop,
    )
