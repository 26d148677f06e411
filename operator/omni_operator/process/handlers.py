"""What kopf calls: the login, and the watch of OmniPipelines, which feeds the store and the queue.

Only `on.event` is used: it leaves no annotation and no finalizer on any object. kopf brings the process (signals, exit)
and the watch with re-authentication; which pipelines exist is checked against a list at every resync, for kopf does
not report deletions that happened while it was not connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Protocol, cast

import kopf

from omni_operator.kinds import PIPELINES
from omni_operator.process.settings import OperatorSettings

_log = logging.getLogger(__name__)

WATCH_TIMEOUT_S = 60


class EndlessBackoffs:
    """Pauses before kopf's next attempt, in seconds, without end: a finite list ends the process on its last one."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause
            pause = min(5.0, pause * 2)


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps no last-handled state and computes none: kopf would copy every object several times for a diff that
    no handler asks for."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of the object counts."""
        return cast(kopf.BodyEssence, {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing was kept."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is kept."""


class PipelineWatcher(Protocol):
    """Whom the handlers report to."""

    def new_kopf_session(self) -> kopf.AiohttpSession:
        """Credentials for kopf's own calls."""

    def pipeline_seen(self, event_type: str | None, manifest: dict[str, Any]) -> None:
        """An event of kopf's watch; type None is an item of its list."""

    async def stop(self) -> None:
        """The process ends."""


def build_kopf_settings(settings: OperatorSettings) -> kopf.OperatorSettings:
    """kopf's settings: no peering (leadership is a Lease), no events of its own, no scanning of CRDs."""
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
    # A limit would be on objects, not on work: an idle worker keeps its slot for idle_timeout.
    result.queueing.worker_limit = None
    result.queueing.idle_timeout = 1.0
    result.persistence.diffbase_storage = NoDiffBase()
    result.process.ultimate_exiting_timeout = 30
    return result


def build_registry(watcher: PipelineWatcher, stop: asyncio.Event) -> kopf.OperatorRegistry:
    """kopf's handlers, in a registry of their own; stop is set when kopf ends."""
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
        # kopf handles signals itself, and its task that waits for the flag would hold up the exit for 5 s.
        stop.set()

    return registry


async def run_kopf(settings: OperatorSettings, watcher: PipelineWatcher, stop: asyncio.Event) -> None:
    """Run kopf until SIGTERM, SIGINT or stop. Raises what ended it otherwise."""
    await kopf.operator(
        registry=build_registry(watcher, stop),
        settings=build_kopf_settings(settings),
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        stop_flag=stop,
    )
