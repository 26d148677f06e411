"""The watches of one process: they fill the store and report which pipelines a change affects.

kopf watches OmniPipelines; reflectors watch the objects that belong to them. kopf's watch does not report every
deletion, so every resync also compares the pipelines with a list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.api.seen import Seen
from omni_kube.errors import ApiError, ForbiddenError
from omni_kube.objects import Manifest, NamespacedName, ObjectKind, parse_version
from omni_kube.reflector import Reflector
from omni_kube.store import Store
from omni_operator.kinds import PIPELINE_KIND, PIPELINES, WATCHED_KINDS
from omni_proto.pod_contract import PIPELINE_LABEL

API_POLL_S: Final = 2.0
"""Interval at which to check whether the API server knows OmniPipelines."""
SYNC_POLL_S: Final = 0.05
"""Interval at which to check whether the lists of a scope are complete."""

WATCH_TIMEOUT_S: Final = 60
"""How long kopf's watch of the pipelines lasts before it is renewed."""
WATCH_SLACK_S: Final = 5
"""A watch that ends this much earlier than it should was interrupted."""
FORBIDDEN: Final = 403

_log = logging.getLogger(__name__)
_refused: ContextVar[bool] = ContextVar("omni_operator_refused", default=False)


def last_call_refused() -> bool:
    """Returns whether the API server answered 403 to the last call that kopf made in this task."""
    return _refused.get()


class Watches:
    """All watches, by scope: a namespace, or "" for all namespaces.

    Scopes do not depend on one another. In a scope whose namespace or Role was deleted, the API server refuses every
    list (403). The operator keeps asking, and serves the other scopes.
    """

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        namespaces: Sequence[str],
        on_change: Callable[[Iterable[NamespacedName]], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """If namespaces is empty, all namespaces are watched. on_change is called with the pipelines that a change
        affects. spawn runs a task until the process ends."""
        self._client = client
        self._store = store
        self._scopes = tuple(namespaces) or ("",)
        self._on_change = on_change
        self._spawn = spawn
        self._reflectors: list[Reflector] = []
        now = asyncio.get_running_loop().time()
        self._pipelines_heard = dict.fromkeys(self._scopes, now)  # when kopf's watches last received anything
        self._watch_begun: dict[str, float] = {}  # when kopf's latest watch of a scope began
        self._interrupted = asyncio.Event()
        self._pipelines_refused: set[str] = set()  # scopes for which the API server answered 403 to kopf's last call

    def scope_of(self, namespace: str) -> str:
        """Returns the scope of the watch that covers a namespace."""
        return "" if self._scopes == ("",) else namespace

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
        refuses none of these watches. Refused watches of optional kinds do not matter.
        """
        scope = self.scope_of(namespace)
        return all(
            reflector.kind.optional if reflector.refused else reflector.synced.is_set()
            for reflector in self._reflectors
            if reflector.namespace == scope
        )

    def unsynced(self) -> list[str]:
        """Returns the names of the watches whose first list is not complete.

        Once some scope is current, watches that the API server refuses are left out: they may never be complete.
        """
        skip = self._any_current()
        waiting = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        return [reflector.name for reflector in waiting if not (skip and reflector.refused)]

    def _any_current(self) -> bool:
        return any(self.is_current(scope) for scope in self._scopes)

    async def discover_optional(self) -> bool:
        """Watch optional kinds that the cluster has and that are not watched yet. Returns whether there were any."""
        found = False
        watched = {reflector.kind for reflector in self._reflectors}
        for kind in WATCHED_KINDS:
            if not kind.optional or kind in watched:
                continue
            try:
                if await self._client.serves(kind):
                    _log.info("the cluster has %s: the operator now watches and writes them", kind.plural)
                    self._add(kind)
                    found = True
            except ApiError as error:
                _log.warning("cannot find out whether the cluster has %s: %s", kind.plural, error)
        return found

    def take_pipeline(self, event_type: str | None, manifest: Manifest) -> set[NamespacedName]:
        """Store an OmniPipeline that kopf reports, or remove it if it was deleted. Returns the affected pipelines.

        event_type: None if the object comes from a list.
        """
        scope = self.scope_of(manifest["metadata"]["namespace"])
        self._pipelines_heard[scope] = asyncio.get_running_loop().time()
        manifest = {"apiVersion": PIPELINES.api_version, "kind": PIPELINE_KIND} | manifest
        take = self._store.remove_seen if event_type == "DELETED" else self._store.put_seen
        return take(Seen.of(manifest), scope)

    def kopf_heard(self, path: str, status: int) -> None:
        """Note a response to one of kopf's calls: a successful one shows that the watch is alive."""
        if f"/{PIPELINES.plural}?" not in path:
            return
        for scope in self._scopes:
            if scope and f"/namespaces/{scope}/" not in path:
                continue
            _refused.set(status == FORBIDDEN)
            if status < 300:
                self._pipelines_heard[scope] = now = asyncio.get_running_loop().time()
                if "watch=true" in path:
                    if now - self._watch_begun.get(scope, float("-inf")) < WATCH_TIMEOUT_S - WATCH_SLACK_S:
                        self._interrupted.set()
                    self._watch_begun[scope] = now
                if scope in self._pipelines_refused:
                    _log.info("the pipelines %s can be watched again", _describe(scope))
                self._pipelines_refused.discard(scope)
            elif status == FORBIDDEN and scope not in self._pipelines_refused:
                self._pipelines_refused.add(scope)
                # One warning for each outage; kopf's own lines, one for each attempt, are not written.
                _log.warning(
                    "the API server does not let the operator watch the pipelines %s (403): %s; the operator keeps "
                    "trying, with growing pauses", _describe(scope), _remedy(scope),
                )  # fmt: skip

    def ages(self, *, refused: bool = True) -> dict[str, float]:
        """Returns the seconds since each watch last received anything, by its name.

        refused: whether to include the watches that the API server refuses.
        """
        now = asyncio.get_running_loop().time()
        ages = {
            f"{PIPELINE_KIND}/{scope}" if scope else PIPELINE_KIND: now - heard
            for scope, heard in self._pipelines_heard.items()
            if refused or scope not in self._pipelines_refused
        }
        return ages | {one.name: one.age_s for one in self._reflectors if refused or not one.refused}

    async def wait_interrupted(self, timeout_s: float) -> bool:
        """Wait until kopf's watch was interrupted since the last call, or for timeout_s. Returns whether it was.

        The API server ends all watches of a kind when its CustomResourceDefinition changes. Only a new list shows how
        that changed the pipelines: see Listing.put.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._interrupted.wait()
        except TimeoutError:
            return False
        self._interrupted.clear()
        return True

    async def sweep(self) -> None:
        """Make the stored pipelines equal to a new list, scope by scope. If a list fails, continues with the next
        scope. Logs the ApiError, unless the scope is known to be refused: then its pipelines are forgotten."""
        for scope in self._scopes:
            try:
                await self._sweep(scope)
            except ForbiddenError as error:
                if scope and scope in self._pipelines_refused:
                    self._forget(scope)
                else:
                    _log.warning("resync of %s failed: %s", scope or "all namespaces", error)
            except ApiError as error:
                _log.warning("resync of %s failed: %s", scope or "all namespaces", error)

    def _forget(self, scope: str) -> None:
        """Forget the pipelines of a namespace in which both a list and kopf's watch are refused.

        If the namespace was deleted while the watch was interrupted, nothing else reports that its pipelines are gone,
        and their conditions would stay in the metrics. If only the Role is missing, kopf lists the pipelines again as
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
        told = False
        while True:
            try:
                if await self._client.serves(PIPELINES):
                    return
                problem = f"the API server does not know {PIPELINES.plural}.{PIPELINES.group}: apply manifests/crd"
            except ApiError as error:
                problem = str(error)
            if not told:
                _log.warning("waiting: %s", problem)
                told = True
            await asyncio.sleep(API_POLL_S)

    def _add(self, kind: ObjectKind) -> None:
        for namespace in self._scopes:
            reflector = Reflector(
                self._client, self._store, kind, namespace, selector=PIPELINE_LABEL, on_change=self._on_change
            )
            self._reflectors.append(reflector)
            self._spawn(reflector.run())


def _describe(scope: str) -> str:
    return f"of namespace {scope}" if scope else "of all namespaces"


def _remedy(scope: str) -> str:
    if not scope:
        return "restore the operator's ClusterRole and its binding (helm upgrade)"
    return (
        "if the namespace was deleted, remove it from watchNamespaces (--namespace); otherwise restore the operator's "
        "Role and RoleBinding in it (helm upgrade)"
    )
