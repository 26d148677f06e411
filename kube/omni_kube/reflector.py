"""Keeps one collection of the store in step with the API server: list, then watch, and a new list when the watch is
lost.

A list replaces the stored collection: objects that the list lacks were deleted while no watch was open. (kopf's own
watches do not do this: after a relist they report only existing objects, so a deletion during an outage would never be
noticed.) A reflector never ends by itself: it retries even if the list is forbidden or the server is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import aclosing

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import Backoff
from omni_kube.api.wire import WatchEvent
from omni_kube.errors import ApiError, ForbiddenError, GoneError, NotFoundError
from omni_kube.objects import NamespacedName, ObjectKind, parse_version
from omni_kube.store import Store

WATCH_TIMEOUT_S = 60.0
"""A watch is renewed after this time, so the time of the last response shows whether it is alive."""
SHORTEST_WATCH_S = 1.0
"""After a watch that ended sooner, the reflector pauses before the next one."""

_log = logging.getLogger(__name__)


class Reflector:
    """Watches one kind in one namespace ("" is all). The API server applies the label selector."""

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        kind: ObjectKind,
        namespace: str,
        *,
        selector: str,
        on_change: Callable[[Iterable[NamespacedName]], None],
        watch_timeout_s: float = WATCH_TIMEOUT_S,
        backoff: Backoff | None = None,
    ) -> None:
        """on_change is called with the roots (see Store) that a change affects: the pipelines, in the operator."""
        self.kind = kind
        self.namespace = namespace
        self.synced = asyncio.Event()
        """Set once the first list is complete."""
        self._client = client
        self._store = store
        self._selector = selector
        self._on_change = on_change
        self._watch_timeout_s = watch_timeout_s
        self._backoff = backoff or Backoff(first_s=0.5, longest_s=5.0)
        self._last_seen = asyncio.get_running_loop().time()
        self.lists = 0
        """Complete lists so far."""
        self.refused = False
        """Whether the API server refused (403) the last list or watch: the role or the namespace does not exist. Or it
        does not know the kind."""
        self.absent = False
        """Whether the API server does not know the kind (404): its CRD was deleted."""
        self.failure: ApiError | None = None
        """The error of the last list or watch; None once the API server answers again."""

    @property
    def name(self) -> str:
        """The kind, followed by the namespace if the reflector is limited to one."""
        return f"{self.kind.kind}/{self.namespace}" if self.namespace else self.kind.kind

    @property
    def age_s(self) -> float:
        """Seconds since the API server last sent anything about this collection."""
        return asyncio.get_running_loop().time() - self._last_seen

    async def run(self) -> None:
        """List and watch until cancelled."""
        version: str | None = None
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            try:
                if version is None:
                    version = await self._list()
                    failures = 0
                version = await self._watch(version)
                failures = 0
            except GoneError:
                _log.info("watch of %s is too old, listing again", self.name)
                version = None
            except ApiError as error:
                failures += 1
                self.failure = error
                self.refused = isinstance(error, (ForbiddenError, NotFoundError))
                self.absent = isinstance(error, NotFoundError)
                if self.absent:
                    version = None
                    self._on_change(self._store.begin_list(self.kind.kind, self.namespace).end(0))
                pause = max(self._backoff.pause(failures), error.retry_after_s or 0.0)
                # One warning for each outage, not for each attempt.
                _log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG,
                    "watch of %s failed, again in %.1f s: %s", self.name, pause, error,
                )  # fmt: skip
                await asyncio.sleep(pause)
                continue
            if asyncio.get_running_loop().time() - started < SHORTEST_WATCH_S:
                await asyncio.sleep(SHORTEST_WATCH_S)

    async def _list(self) -> str:
        listing = self._store.begin_list(self.kind.kind, self.namespace)
        version = ""
        async with aclosing(self._client.list_pages(self.kind, self.namespace, self._selector)) as pages:
            async for page in pages:
                self._touch()
                version = page.version
                concerned = set()
                for item in page.items:
                    concerned |= listing.put(item, parse_version(version))
                self._on_change(concerned)
        self._on_change(listing.end(parse_version(version)))
        self.lists += 1
        self.synced.set()
        return version

    async def _watch(self, version: str) -> str:
        """Apply events to the store until the server ends the watch. Returns the version to continue from."""
        batches = self._client.watch(self.kind, self.namespace, version, self._watch_timeout_s, self._selector)
        async with aclosing(batches):
            async for events in batches:
                self._touch()
                concerned: set[NamespacedName] = set()
                for event in events:
                    version = event.version
                    concerned |= self._take(event)
                if concerned:
                    self._on_change(concerned)
        return version

    def _take(self, event: WatchEvent) -> set[NamespacedName]:
        if event.seen is None:
            self._store.advance(self.kind.kind, self.namespace, parse_version(event.version))
            return set()
        take = self._store.remove_seen if event.type == "DELETED" else self._store.put_seen
        return take(event.seen, self.namespace)

    def _touch(self) -> None:
        self.refused = self.absent = False
        self.failure = None
        self._last_seen = asyncio.get_running_loop().time()
