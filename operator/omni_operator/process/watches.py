"""The watches of one process: they fill the store and report which pipelines a change affects.

PipelineWatch watches OmniPipelines; reflectors watch the objects that belong to them. The watch of pipelines does not
report every deletion, so every resync also compares the pipelines with a list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.api.wire import Seen
from omni_kube.errors import ApiError, ForbiddenError
from omni_kube.objects import Manifest, NamespacedName, ObjectKind, parse_version
from omni_kube.reflector import Reflector
from omni_kube.store import Store
from omni_operator.kinds import PIPELINE_KIND, PIPELINES, STAGES, WATCHED_KINDS
from omni_operator.process.kopf import PipelineWatch
from omni_proto.pod_contract import PIPELINE_LABEL

API_POLL_S: Final = 2.0
"""Interval at which to check whether the API server knows OmniPipelines."""
SYNC_POLL_S: Final = 0.05
"""Interval at which to check whether the lists of a scope are complete."""

_log = logging.getLogger(__name__)


class Watches:
    """All watches, by scope: a namespace, or "" for all namespaces.

    Scopes do not depend on one another. In a scope whose namespace or Role was deleted, the API server refuses every
    list (403). The operator keeps asking, and serves the other scopes.
    """

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        pipelines: PipelineWatch,
        on_change: Callable[[Iterable[NamespacedName]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """on_change is called with the pipelines that a change affects. spawn runs a task until the process ends."""
        self._client = client
        self._store = store
        self._pipelines = pipelines
        self._scopes = pipelines.scopes
        self._on_change = on_change
        self._spawn = spawn
        self._reflectors: list[Reflector] = []

    async def start(self) -> None:
        """Wait until the API server knows OmniPipelines, then watch every kind that is not optional."""
        await self._wait_for_api()
        for kind in WATCHED_KINDS:
            if not kind.optional:
                self._add(kind)

    async def synced(self) -> None:
        """Wait until some scope is current."""
        while not self._any_current():  # noqa: ASYNC110 - depends on many watches, and only the start waits for it
            await asyncio.sleep(SYNC_POLL_S)

    def is_current(self, namespace: str) -> bool:
        """Returns whether decisions about a namespace may rely on the store.

        They may once the first lists of all watches of the namespace's scope are complete, and while the API server
        refuses none of these watches. Watches of optional kinds do not matter if they are refused or cannot be listed.
        """
        scope = self._pipelines.scope_of(namespace)
        return not any(_holds_up(reflector) for reflector in self._reflectors if reflector.namespace == scope)

    def unsynced(self) -> list[str]:
        """Returns the names of the watches whose first list is not complete.

        Once some scope is current, watches that may never be complete are left out: refused ones, and optional ones
        that fail.
        """
        skip = self._any_current()
        waiting = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        return [one.name for one in waiting if not (skip and (one.refused or not _holds_up(one)))]

    def _any_current(self) -> bool:
        return any(self.is_current(scope) for scope in self._scopes)

    def describe_refusal(self, kind: ObjectKind, namespace: str) -> str:
        """Returns why no object of an optional kind can be kept in a namespace, and the remedy; empty if one can."""
        scope = self._pipelines.scope_of(namespace)
        reflector = next((one for one in self._reflectors if (one.kind, one.namespace) == (kind, scope)), None)
        if reflector is None or reflector.absent:
            return (
                f"the cluster has no {kind.plural} of {kind.api_version}, as far as the operator knows: install a CRD "
                "with this version (the operator looks for it every few minutes), or choose another kind"
            )
        if reflector.refused:
            return (
                f"the operator may not list and watch {kind.plural}.{kind.group}: give it the Role of its version "
                "(the chart's, or manifests/rbac)"
            )
        if _fails(reflector):
            return (
                f"the API server cannot list {kind.plural}.{kind.group} ({reflector.failure}): fix what serves them, "
                "which kubectl get apiservices,crd names"
            )
        return ""

    def has(self, kind: ObjectKind) -> bool:
        """Returns whether the cluster has an optional kind, as far as the operator knows."""
        return any(one.kind == kind and not (one.absent or _fails(one)) for one in self._reflectors)

    async def discover_optional(self, *skip: ObjectKind) -> None:
        """Watch optional kinds that the cluster has and that are not watched yet, except `skip`."""
        watched = {reflector.kind for reflector in self._reflectors}
        for kind in WATCHED_KINDS:
            if not kind.optional or kind in watched or kind in skip:
                continue
            try:
                if await self._client.serves(kind):
                    _log.info("the cluster has %s: the operator now watches and writes them", kind.plural)
                    self._add(kind)
            except ApiError as error:
                _log.warning("cannot find out whether the cluster has %s: %s", kind.plural, error)

    def take_pipeline(self, event_type: str | None, manifest: Manifest) -> set[NamespacedName]:
        """Store an OmniPipeline that its watch reports, or remove it if it was deleted. Returns the affected pipelines.

        event_type: None if the object comes from a list.
        """
        scope = self._pipelines.scope_of(manifest["metadata"]["namespace"])
        manifest = {"apiVersion": PIPELINES.api_version, "kind": PIPELINE_KIND} | manifest
        take = self._store.remove_seen if event_type == "DELETED" else self._store.put_seen
        return take(Seen.of(manifest), scope)

    def ages(self, *, refused: bool = True) -> dict[str, float]:
        """Returns the seconds since each watch last received anything, by its name.

        refused: whether to include the watches that the API server refuses.
        """
        return self._pipelines.ages(refused=refused) | {
            one.name: one.age_s for one in self._reflectors if refused or not one.refused
        }

    async def sweep(self) -> None:
        """Make the stored pipelines equal to a new list, scope by scope. If a list fails, continues with the next
        scope. Logs the ApiError, unless the scope is known to be refused: then its pipelines are forgotten."""
        for scope in self._scopes:
            try:
                await self._sweep(scope)
            except ForbiddenError as error:
                if scope and self._pipelines.is_refused(scope):
                    self._forget(scope)
                else:
                    _log.warning("resync of %s failed: %s", scope or "all namespaces", error)
            except ApiError as error:
                _log.warning("resync of %s failed: %s", scope or "all namespaces", error)

    def _forget(self, scope: str) -> None:
        """Forget the pipelines of a namespace in which both a list and their watch are refused.

        If the namespace was deleted while the watch was interrupted, nothing else reports that its pipelines are gone,
        and their conditions would stay in the metrics. If only the Role is missing, the watch lists them again as
        soon as it is back.
        """
        self._on_change(self._store.begin_list(PIPELINE_KIND, scope).end(0))

    async def _sweep(self, scope: str) -> None:
        listing = self._store.begin_list(PIPELINE_KIND, scope)
        version = ""
        async with aclosing(self._client.list_pages(PIPELINES, scope)) as pages:
            async for page in pages:
                version = page.version
                for item in page.items:
                    self._on_change(listing.put(item, parse_version(version)))
        self._on_change(listing.end(parse_version(version)))

    async def _wait_for_api(self) -> None:
        warned = False
        while True:
            try:
                if await self._client.serves(PIPELINES):
                    return
                problem = f"the API server does not know {PIPELINES.plural}.{PIPELINES.group}: apply manifests/crd"
            except ApiError as error:
                problem = str(error)
            if not warned:
                _log.warning("waiting: %s", problem)
                warned = True
            await asyncio.sleep(API_POLL_S)

    def _add(self, kind: ObjectKind) -> None:
        for namespace in self._scopes:
            reflector = Reflector(
                self._client, self._store, kind, namespace, selector=PIPELINE_LABEL, on_change=self._on_change
            )
            self._reflectors.append(reflector)
            self._spawn(reflector.run())


def _fails(reflector: Reflector) -> bool:
    """Returns whether no list of a kind was complete yet, and the last one failed: an aggregated API has no server."""
    return reflector.failure is not None and not reflector.synced.is_set()


def _holds_up(reflector: Reflector) -> bool:
    """Returns whether decisions must wait for a watch. Those of OmniStages: without their numbers, pods would start."""
    if reflector.refused:
        return not reflector.kind.optional
    spared = reflector.kind.optional and reflector.kind != STAGES and _fails(reflector)
    return not (reflector.synced.is_set() or spared)
