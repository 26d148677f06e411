"""All that knows kopf: the watch of OmniPipelines, and the process that kopf runs around it (signals, exit).

`on.event` is the only one of kopf's event handlers that is used, because it adds no annotation and no finalizer to any
object. kopf 1.45 reports neither deletions that happened while it was disconnected, nor that its watch was interrupted.
So the responses to its calls are observed here, and every resync compares the known pipelines with a new list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

import kopf

from omni_kube.api.transport import ApiConnection
from omni_kube.objects import Manifest
from omni_operator.kinds import PIPELINE_KIND, PIPELINES

WATCH_TIMEOUT_S: Final = 60
"""How long a watch of the pipelines lasts before it is renewed."""
WATCH_SLACK_S: Final = 5
"""A watch that ends this much earlier than it should was interrupted."""
MAX_PAUSE_S: Final = 5.0
MAX_REFUSED_PAUSE_S: Final = 30.0
"""Longest pause while the API server answers 403: a person must first restore a namespace or a role."""
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404

_log = logging.getLogger(__name__)
_refused: ContextVar[bool] = ContextVar("omni_operator_refused", default=False)
"""Whether the API server answered 403 to the last call that kopf made in this task."""


class ResourceGoneError(Exception):
    """The API server no longer knows OmniPipelines. A new process waits until it does."""


class PipelineWatch:
    """The watch of OmniPipelines, by scope: a namespace, or "" for all namespaces."""

    def __init__(
        self, connection: ApiConnection, namespaces: Sequence[str], on_event: Callable[[str | None, Manifest], None]
    ) -> None:
        """If namespaces is empty, all namespaces are watched. on_event gets the type of each event and its object; the
        type is None for an item of a list."""
        self._connection = connection
        self._namespaces = tuple(namespaces)
        self._on_event = on_event
        self.scopes = self._namespaces or ("",)
        self._last_received = dict.fromkeys(self.scopes, asyncio.get_running_loop().time())
        self._begun: dict[str, float] = {}  # when the latest watch of a scope began
        self._refused: set[str] = set()  # scopes for which the API server answered 403 to the last call
        self._interrupted = asyncio.Event()
        self._is_gone = False

    def scope_of(self, namespace: str) -> str:
        """Returns the scope of the watch that covers a namespace."""
        return namespace if self._namespaces else ""

    async def run(self, on_exit: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
        """Watch until SIGTERM, SIGINT or stop, then await on_exit. Raises the error if anything else ended it, and
        ResourceGoneError if that is the deletion of the CRD."""
        hide_reported()
        try:
            await kopf.operator(
                registry=self._build_registry(on_exit, stop),
                settings=build_kopf_settings(),
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=stop,
            )
        except Exception as error:
            if not self._is_gone:
                raise
            raise ResourceGoneError(
                f"the CRD of {PIPELINES.plural}.{PIPELINES.group} was deleted, and with it all pipelines; the operator "
                "ends, and waits for the CRD when it is started again"
            ) from error

    def is_refused(self, scope: str) -> bool:
        """Returns whether the API server refuses the watch of a scope."""
        return scope in self._refused

    def ages(self, *, refused: bool) -> dict[str, float]:
        """Returns the seconds since each watch last received anything, by its name.

        refused: whether to include the watches that the API server refuses.
        """
        now = asyncio.get_running_loop().time()
        return {
            f"{PIPELINE_KIND}/{scope}" if scope else PIPELINE_KIND: now - received
            for scope, received in self._last_received.items()
            if refused or scope not in self._refused
        }

    async def wait_interrupted(self, timeout_s: float) -> bool:
        """Wait until a watch was interrupted since the last call, or for timeout_s. Returns whether one was.

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

    def on_response(self, path: str, status: int) -> None:
        """Note a response to one of kopf's calls: a successful one shows that the watch is alive."""
        if f"/{PIPELINES.plural}?" not in path:
            return
        for scope in self.scopes:
            if scope and f"/namespaces/{scope}/" not in path:
                continue
            _refused.set(status == FORBIDDEN)
            self._is_gone = status == NOT_FOUND
            if status < 300:
                self._last_received[scope] = now = asyncio.get_running_loop().time()
                if "watch=true" in path:
                    if now - self._begun.get(scope, float("-inf")) < WATCH_TIMEOUT_S - WATCH_SLACK_S:
                        self._interrupted.set()
                    self._begun[scope] = now
                if scope in self._refused:
                    _log.info("the pipelines %s can be watched again", _describe(scope))
                self._refused.discard(scope)
            elif status == FORBIDDEN and scope not in self._refused:
                self._refused.add(scope)
                # One warning for each outage; kopf's own lines, one for each attempt, are not written.
                _log.warning(
                    "the API server does not let the operator watch the pipelines %s (403): %s; the operator keeps "
                    "trying, with growing pauses", _describe(scope), _remedy(scope),
                )  # fmt: skip

    def _build_registry(self, on_exit: Callable[[], Awaitable[None]], stop: asyncio.Event) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def log_in(**_: object) -> kopf.AiohttpSession:
            # Called again when the API server does not accept the credentials.
            session = self._connection.new_session(self.on_response)
            return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=session)

        @kopf.on.event(PIPELINES.group, PIPELINES.api_version.rpartition("/")[2], PIPELINES.plural, registry=registry)
        async def on_pipeline_event(event: Any, **_: object) -> None:
            namespace = event["object"]["metadata"]["namespace"]
            self._last_received[self.scope_of(namespace)] = asyncio.get_running_loop().time()
            self._on_event(event["type"], event["object"])

        @kopf.on.cleanup(registry=registry)
        async def clean_up(**_: object) -> None:
            await on_exit()
            # kopf handles signals itself. kopf's task that waits for stop would otherwise delay the exit by 5 s.
            stop.set()

        return registry


class EndlessBackoffs:
    """Infinite sequence of pauses before kopf's next attempt, in seconds. kopf exits when a finite sequence ends."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            # kopf takes the pause of an attempt in the task that makes the attempts, before it makes this one.
            yield min(pause, MAX_REFUSED_PAUSE_S if _refused.get() else MAX_PAUSE_S)
            pause = min(MAX_REFUSED_PAUSE_S, pause * 2)


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


def build_kopf_settings() -> kopf.OperatorSettings:
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


def hide_reported() -> None:
    """Do not write kopf's lines about what is reported here: refused (403) calls, one for each attempt, because
    `on_response` writes one warning for each outage, and the deletion of the CRD (404)."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_reported)


def _is_not_reported(record: logging.LogRecord) -> bool:
    error = type(record.exc_info[1]).__name__ if record.exc_info else ""
    return not record.name.startswith("kopf") or not (
        "APIForbiddenError" in record.getMessage() or error == "APINotFoundError"
    )


def _describe(scope: str) -> str:
    return f"of namespace {scope}" if scope else "of all namespaces"


def _remedy(scope: str) -> str:
    if not scope:
        return "restore the operator's ClusterRole and its binding (helm upgrade)"
    return (
        "if the namespace was deleted, remove it from watchNamespaces (--namespace); otherwise restore the operator's "
        "Role and RoleBinding in it (helm upgrade)"
    )
