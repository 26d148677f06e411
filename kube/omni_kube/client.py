"""Calls to the API server as plain JSON: writes by server-side apply, every failure a class.

No typed models: parsing into them costs more than the call. JSON by msgspec: that of the standard library was a quarter
of all work. Each call is counted by verb and code, each write passes the gate (leadership) and the rate limit
first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from omni_kube.clock import ServerClock
from omni_kube.connection import CONNECT_TIMEOUT_S, Connection, iter_lines
from omni_kube.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    UnreachableError,
    api_error,
)
from omni_kube.objects import FIELD_MANAGER, ChildKind, Manifest
from omni_kube.pacing import RateLimiter
from omni_kube.wire import Page, WatchEvent, parse_event, parse_page

REQUEST_TIMEOUT_S: Final = 15.0
"""Longest time of a call that is no watch."""
LIST_TIMEOUT_S: Final = 60.0
CONCURRENT_CALLS: Final = 8
"""Calls at the same time, watches, lists and the lease apart."""
PAGE_SIZE: Final = 64
"""Objects of a page, each of up to 1.5 MiB."""
CONCURRENT_PAGES: Final = 2
"""Pages in work at a time; two, so that a kind that the server is slow on does not hold up all others."""
METADATA_PAGE_SIZE: Final = 250
"""Of pages that hold metadata alone: up to 256 KiB of annotations each."""
WATCH_SLACK_S: Final = 15.0
"""How much later than asked for the server may end a watch before the connection counts as dead."""

RETRY_PAUSES_S: Final = (0.1, 0.4)
"""Pauses before a call that may be repeated is made again, within the same look at a pipeline."""
LONGEST_PAUSE_S: Final = 2.0
"""A server that asks for more is asked again by the queue, which meanwhile works on something else."""
TIMEOUT: Final = "Timeout"
"""Reason of an UnreachableError that took its whole time: it is not repeated at once."""

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_Answer = TypeVar("_Answer")


class CallMetrics(Protocol):
    """Counts calls."""

    def count_call(self, verb: str, code: str, seconds: float) -> None:
        """One call of an RBAC verb: its HTTP status, "timeout" or "unreachable", known after so many seconds."""


class ApiClient:
    """The API server. Methods raise ApiError subclasses; `kind` arguments give group, version and plural."""

    def __init__(
        self,
        connection: Connection,
        metrics: CallMetrics,
        limiter: RateLimiter,
        may_write: Callable[[], float] = lambda: REQUEST_TIMEOUT_S,
    ) -> None:
        """may_write is called right before every write: how many seconds it may take; or it raises what should keep it
        from being sent."""
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None
        self._metrics = metrics
        self._limiter = limiter
        self._may_write = may_write
        # Each connection costs a TLS handshake, as much CPU as ten calls.
        self._slots = asyncio.Semaphore(CONCURRENT_CALLS)
        self._pages = asyncio.Semaphore(CONCURRENT_PAGES)
        self.clock = ServerClock()
        """The API server's."""

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, kind: ChildKind, namespace: str, name: str) -> Manifest | None:
        """An object, None if there is none."""
        try:
            return await self._repeat(lambda: self._call("get", "GET", kind.path(namespace, name)))
        except NotFoundError:
            return None

    async def list_pages(self, kind: ChildKind, namespace: str, selector: str = "") -> AsyncGenerator[Page, None]:
        """All objects of a kind in a namespace ("": all), in pages of one consistent state; kinds are filled in."""
        size = METADATA_PAGE_SIZE if kind.metadata_only else PAGE_SIZE
        params = {"limit": str(size)} | ({"labelSelector": selector} if selector else {})
        while True:
            # Held until the page is taken in: a dozen kinds are listed at the start.
            async with self._pages:
                page = await self._read(
                    partial(parse_page, kind=kind),
                    "list",
                    "GET",
                    kind.path(namespace),
                    params=params,
                    accept=_METADATA_LIST if kind.metadata_only else _JSON,
                    timeout_s=LIST_TIMEOUT_S,
                )
                yield page
            params["continue"] = page.rest
            if not params["continue"]:
                return

    async def watch(
        self, kind: ChildKind, namespace: str, version: str, timeout_s: float, selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events since a version, until the server ends the watch after about timeout_s. Raises GoneError."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(timeout_s)),
        } | ({"labelSelector": selector} if selector else {})
        timeout = aiohttp.ClientTimeout(
            total=timeout_s + WATCH_SLACK_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=timeout_s + WATCH_SLACK_S
        )
        path = kind.path(namespace)
        headers = {"Accept": _METADATA if kind.metadata_only else _JSON}
        async with self._request("watch", "GET", path, params=params, headers=headers, timeout=timeout) as response:
            if response.status >= 300:
                raise api_error(response.status, await response.read(), response.headers.get("Retry-After"), path)
            yield WatchEvent("BOOKMARK", version)  # the connection stands
            async for text in iter_lines(response.content):
                yield parse_event(text, kind, path)

    async def apply(self, kind: ChildKind, manifest: Manifest, uid: str) -> Manifest:
        """Server-side apply of a whole child, forced: it must be ours. Returns it as it is now.

        Raises ConflictError if the object of that name is gone, or another one than uid.
        """
        metadata = {**manifest["metadata"], "uid": uid}
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**manifest, "metadata": metadata}
        with _as_conflict():
            return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _APPLY), (ConflictError,))

    async def apply_new(self, kind: ChildKind, manifest: Manifest) -> Manifest:
        """Server-side apply of a child that must not exist: raises ConflictError if the name is taken, whoever's it is.

        A resource version in an applied object is a precondition of the update (Kubernetes API concepts, "Resource
        versions"), and of no consequence where the apply creates. No object ever has version 1: etcd starts with it.
        """
        metadata = {**manifest["metadata"], "resourceVersion": "1"}
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**manifest, "metadata": metadata}
        return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _APPLY))

    async def merge(self, kind: ChildKind, manifest: Manifest, change: Manifest, uid: str) -> Manifest:
        """JSON merge patch of a child that is ours: a list in change replaces the live one as a whole.

        Raises ConflictError if the object of that name is another one than uid.
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**change, "metadata": {"uid": uid}}
        with _as_conflict():
            return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _MERGE))

    async def apply_status(self, kind: ChildKind, manifest: Manifest) -> Manifest:
        """Server-side apply of the status subresource.

        With a resourceVersion in metadata it raises ConflictError for a later or another object (a uid is ignored).
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"]) + "/status"
        return await self._repeat(lambda: self._write("patch", "PATCH", path, manifest, _APPLY))

    async def delete(
        self, kind: ChildKind, namespace: str, name: str, *, uid: str, version: str | None = None
    ) -> Manifest | None:
        """Delete an object of that uid (and version), what it owns in the background; None if it is gone already.

        Raises ConflictError if another object has the name, or the object has changed.
        """
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": "Background",
        }
        path = kind.path(namespace, name)
        try:
            return await self._repeat(lambda: self._write("delete", "DELETE", path, options, _JSON, params={}))
        except NotFoundError:
            return None

    async def create(self, kind: ChildKind, manifest: Manifest) -> Manifest:
        """Create an object that is written once (an Event). Raises ConflictError if it exists."""
        path = kind.path(manifest["metadata"]["namespace"])
        await self._limiter.acquire()
        return await self._write("create", "POST", path, manifest, _JSON)

    async def call_unlimited(self, verb: str, method: str, path: str, body: Manifest | None = None) -> Manifest:
        """A call that neither waits its turn nor passes the gate: the lease's, which the gate depends on."""
        return await self._call(verb, method, path, body=body, content_type=_JSON)

    async def serves(self, kind: ChildKind) -> bool:
        """Whether the API server knows a kind at present."""
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            document = await self._call("discover", "GET", root)
        except NotFoundError:
            return False
        return any(resource.get("name") == kind.plural for resource in document.get("resources", ()))

    async def _repeat(self, call: Callable[[], Awaitable[Manifest]], also: tuple[type[ApiError], ...] = ()) -> Manifest:
        """Make a call that does no harm when it is carried out twice; again after a fault of the server, or `also`.

        One fault in a hundred calls must not throw a round of fifty of them back to its start.
        """
        pauses_s = iter(RETRY_PAUSES_S)
        while True:
            await self._limiter.acquire()
            try:
                async with self._slots:
                    return await call()
            except ApiError as error:
                passing = isinstance(error, (ServerError, TooManyRequestsError, *also)) and error.reason != TIMEOUT
                pause_s, asked_for_s = next(pauses_s, None), error.retry_after_s or 0.0
                if not passing or pause_s is None or asked_for_s > LONGEST_PAUSE_S:
                    raise
                await asyncio.sleep(max(pause_s, asked_for_s))

    async def _write(
        self,
        verb: str,
        method: str,
        path: str,
        body: Manifest,
        content_type: str,
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        if params is None:
            params = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if content_type == _APPLY:
            params = {**params, "force": "true"}
        timeout_s = min(REQUEST_TIMEOUT_S, self._may_write())
        return await self._call(
            verb, method, path, params=params, body=body, content_type=content_type, timeout_s=timeout_s
        )

    async def _call(self, verb: str, method: str, path: str, **arguments: Any) -> Manifest:
        """The answer to `_read` as JSON."""
        document: Manifest = await self._read(msgspec.json.decode, verb, method, path, **arguments)
        return document

    async def _read(
        self,
        decode: Callable[[bytes], _Answer],
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> _Answer:
        """What `decode` makes of the answer; that it raises ValueError is an UnreachableError: no API server spoke."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if data is not None else {})
        async with self._request(
            verb, method, path, params=params, data=data, headers=headers, timeout=timeout
        ) as response:
            content = await response.read()
            if response.status >= 300:
                raise api_error(response.status, content, response.headers.get("Retry-After"), f"{verb} {path}")
            return decode(content)

    @asynccontextmanager
    async def _request(
        self, verb: str, method: str, path: str, **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = self._connection.new_session()
        counted, began = False, time.monotonic()
        try:
            async with self._session.request(
                method, URL(self._connection.server + path, encoded=True), **arguments
            ) as response:
                self._metrics.count_call(verb, str(response.status), time.monotonic() - began)
                self.clock.hear(response.headers.get("Date", ""), time.monotonic())
                counted = True
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            slow = isinstance(error, TimeoutError)
            if not counted:
                self._metrics.count_call(verb, "timeout" if slow else "unreachable", time.monotonic() - began)
            what = "no answer in time" if slow else f"{type(error).__name__}: {error}"
            raise UnreachableError(what, reason=TIMEOUT if slow else "Unreachable", call=f"{verb} {path}") from error


@contextmanager
def _as_conflict() -> Iterator[None]:
    """The API server calls a change of the uid invalid where the name has another object by now."""
    try:
        yield
    except InvalidError as error:
        if "metadata.uid:" not in error.message:
            raise
        raise ConflictError(error.message, status=error.status, reason=error.reason) from error
