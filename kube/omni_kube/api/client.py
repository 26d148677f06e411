"""The verbs of the API server: reads, lists and watches; writes by server-side apply.

Each write first passes the leadership check. The rate limit applies to all calls except watches, lists, discovery
(`serves`) and the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import aiohttp

from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import CONNECT_TIMEOUT_S, JSON, REQUEST_TIMEOUT_S, TIMEOUT, Transport, iter_lines
from omni_kube.api.wire import Page, WatchEvent, parse_events, parse_page
from omni_kube.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    api_error,
)
from omni_kube.objects import Manifest, ObjectKind

LIST_TIMEOUT_S: Final = 60.0
CONCURRENT_CALLS: Final = 8
"""Largest number of concurrent idempotent reads and writes of single objects."""
PAGE_SIZE: Final = 64
"""Objects in a page of a list. Each may have up to 1.5 MiB."""
CONCURRENT_PAGES: Final = 2
"""Pages that are processed at the same time. Two, so that one kind with slow lists does not delay all others."""
METADATA_PAGE_SIZE: Final = 250
"""Objects in a page that holds only metadata. Each may have up to 256 KiB of annotations."""
WATCH_SLACK_S: Final = 15.0
"""How long after the requested end of a watch the client still waits for the server to end it."""
GATHER_S: Final = 0.1
"""Events of a watch are read in batches. After a batch, the next one is read at most this many seconds later."""

RETRY_PAUSES_S: Final = (0.1, 0.4)
"""Pauses before the retries of an idempotent call within one reconcile."""
LONGEST_PAUSE_S: Final = 2.0
"""If the server requests a longer pause, the call fails, and the queue retries the reconcile later."""

_APPLY = "application/apply-patch+yaml"  # JSON is YAML
_MERGE = "application/merge-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiClient:
    """Client of the API server. Methods raise ApiError subclasses; `kind` arguments give group, version and plural."""

    def __init__(
        self,
        transport: Transport,
        limiter: RateLimiter,
        may_write: Callable[[], float] = lambda: REQUEST_TIMEOUT_S,
    ) -> None:
        """may_write is called right before every write. It returns how many seconds the write may take, or raises an
        error, and then the write is not sent."""
        self.transport = transport
        """Sends the calls. This client does not close it."""
        self._limiter = limiter
        self._may_write = may_write
        # Limits the number of connections: each costs a TLS handshake, which takes as much CPU time as ten calls.
        self._slots = asyncio.Semaphore(CONCURRENT_CALLS)
        self._pages = asyncio.Semaphore(CONCURRENT_PAGES)

    async def get(self, kind: ObjectKind, namespace: str, name: str) -> Manifest | None:
        """Returns an object, None if there is none."""
        try:
            return await self._repeat(lambda: self.transport.call("get", "GET", kind.path(namespace, name)))
        except NotFoundError:
            return None

    async def list_pages(self, kind: ObjectKind, namespace: str, selector: str = "") -> AsyncGenerator[Page, None]:
        """Yields all objects of a kind in a namespace ("": all), in pages of one consistent state."""
        size = METADATA_PAGE_SIZE if kind.metadata_only else PAGE_SIZE
        params = {"limit": str(size)} | ({"labelSelector": selector} if selector else {})
        while True:
            # Held until the caller has processed the page: a dozen kinds are listed at the start.
            async with self._pages:
                page = await self.transport.read(
                    partial(parse_page, kind=kind),
                    "list",
                    "GET",
                    kind.path(namespace),
                    params=params,
                    accept=_METADATA_LIST if kind.metadata_only else JSON,
                    timeout_s=LIST_TIMEOUT_S,
                )
                yield page
            params["continue"] = page.rest
            if not params["continue"]:
                return

    async def watch(
        self, kind: ObjectKind, namespace: str, version: str, timeout_s: float, selector: str = ""
    ) -> AsyncGenerator[list[WatchEvent], None]:
        """Yields the events since a version, in batches, until the server ends the watch after about timeout_s seconds.

        The first batch is a bookmark of that version, once the watch is established. Raises GoneError.
        """
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(timeout_s)),
        } | ({"labelSelector": selector} if selector else {})
        # No sock_read timeout: the total one ends a silent watch anyway, and aiohttp would reset a timer at each chunk.
        timeout = aiohttp.ClientTimeout(total=timeout_s + WATCH_SLACK_S, sock_connect=CONNECT_TIMEOUT_S)
        path = kind.path(namespace)
        headers = {"Accept": _METADATA if kind.metadata_only else JSON}
        async with self.transport.request(
            "watch", "GET", path, params=params, headers=headers, timeout=timeout
        ) as response:
            if response.status >= 300:
                raise api_error(response.status, await response.read(), response.headers.get("Retry-After"), path)
            yield [WatchEvent("BOOKMARK", version)]  # the watch is established
            async for lines in iter_lines(response, GATHER_S):
                events, error = parse_events(lines, kind, path)
                if events:
                    yield events
                if error is not None:
                    raise error

    async def apply(self, kind: ObjectKind, manifest: Manifest, uid: str) -> Manifest:
        """Apply a whole object server-side and by force, so it must belong to the caller. Returns the updated object.

        Raises ConflictError if no object with that name exists, or if it has another uid.
        """
        metadata = {**manifest["metadata"], "uid": uid}
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**manifest, "metadata": metadata}
        with _as_conflict():
            return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _APPLY), (ConflictError,))

    async def apply_new(self, kind: ObjectKind, manifest: Manifest) -> Manifest:
        """Create an object by server-side apply. Returns the new object. Raises ConflictError if the name is taken.

        A resource version in an applied object is a precondition if the object exists (Kubernetes API concepts,
        "Resource versions") and is ignored if it does not. No object ever has version 1: that is the revision of an
        empty etcd, so the first write gets version 2.
        """
        metadata = {**manifest["metadata"], "resourceVersion": "1"}
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**manifest, "metadata": metadata}
        return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _APPLY))

    async def claim_fields(self, kind: ObjectKind, manifest: Manifest, uid: str) -> None:
        """Make the caller the owner of every field of an object that it has never applied. A later apply then removes
        what it no longer contains, as if the caller had created the object.

        Raises ConflictError if the object with that name has another uid, or changes meanwhile.
        """
        metadata = manifest["metadata"]
        live = await self.get(kind, metadata["namespace"], metadata["name"])
        entries = [] if live is None else live["metadata"].get("managedFields") or []
        whole = [item for item in entries if "subresource" not in item]
        if live is None or not whole or any(item["manager"] == self.transport.caller for item in entries):
            return
        owned = {
            **whole[0],
            "manager": self.transport.caller,
            "operation": "Apply",
            "fieldsV1": _union([item.get("fieldsV1") or {} for item in whole]),
        }
        rest = [item for item in entries if "subresource" in item]
        change = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"], "managedFields": [owned, *rest]}}
        await self.merge(kind, manifest, change, uid)

    async def merge(self, kind: ObjectKind, manifest: Manifest, change: Manifest, uid: str) -> Manifest:
        """Send a JSON merge patch of the caller's own object: a list in change replaces the live list as a whole.

        Returns the updated object. Raises ConflictError if the object with that name has another uid.
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"])
        body = {**change, "metadata": {**change.get("metadata", {}), "uid": uid}}
        with _as_conflict():
            return await self._repeat(lambda: self._write("patch", "PATCH", path, body, _MERGE))

    async def scale_from_zero(self, kind: ObjectKind, namespace: str, name: str) -> bool:
        """Set the replicas of an object with the subresource `scale` to 1 if they are 0. Returns whether they were.

        Another client may scale it at this moment: its number stays. Raises ConflictError, NotFoundError.
        """
        path = kind.path(namespace, name) + "/scale"
        live = await self._repeat(lambda: self.transport.call("get", "GET", path))
        if (live.get("spec") or {}).get("replicas", 0):
            return False
        change = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}, "spec": {"replicas": 1}}
        await self._repeat(lambda: self._write("patch", "PATCH", path, change, _MERGE))
        return True

    async def apply_status(self, kind: ObjectKind, manifest: Manifest) -> Manifest:
        """Apply the status subresource server-side. Returns the updated object.

        With a resourceVersion in metadata, raises ConflictError if the object has changed or has been replaced. (The
        API server ignores a uid here.)
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata["namespace"], metadata["name"]) + "/status"
        return await self._repeat(lambda: self._write("patch", "PATCH", path, manifest, _APPLY))

    async def delete(
        self, kind: ObjectKind, namespace: str, name: str, *, uid: str, version: str | None = None
    ) -> Manifest | None:
        """Delete an object that has that uid (and version). The objects that it owns are deleted in the background.

        Returns the API server's response, None if the object no longer exists. Raises ConflictError if another object
        has the name, or the object has changed.
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
            return await self._repeat(lambda: self._write("delete", "DELETE", path, options, JSON, params={}))
        except NotFoundError:
            return None

    async def create(self, kind: ObjectKind, manifest: Manifest) -> Manifest:
        """Create an object that is written once (an Event). Returns it. Raises ConflictError if the name is taken."""
        path = kind.path(manifest["metadata"]["namespace"])
        await self._limiter.acquire()
        return await self._write("create", "POST", path, manifest, JSON)

    async def serves(self, kind: ObjectKind) -> bool:
        """Returns whether the API server knows a kind at present."""
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            document = await self.transport.call("discover", "GET", root)
        except NotFoundError:
            return False
        return any(resource.get("name") == kind.plural for resource in document.get("resources", ()))

    async def _repeat(self, call: Callable[[], Awaitable[Manifest]], also: tuple[type[ApiError], ...] = ()) -> Manifest:
        """Make an idempotent call. Retries after errors of the server (not after timeouts) and after the errors in
        `also`.

        If one call in a hundred fails, a reconcile of fifty calls must not start over because of it.
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
            params = {"fieldManager": self.transport.caller, "fieldValidation": "Strict"}
        if content_type == _APPLY:
            params = {**params, "force": "true"}
        timeout_s = min(REQUEST_TIMEOUT_S, self._may_write())
        return await self.transport.call(
            verb, method, path, params=params, body=body, content_type=content_type, timeout_s=timeout_s
        )


def _union(sets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the union of sets of fields (FieldsV1: a tree of objects)."""
    names = dict.fromkeys(name for one in sets for name in one)
    return {name: _union([one[name] for one in sets if name in one]) for name in names}


@contextmanager
def _as_conflict() -> Iterator[None]:
    """Raise ConflictError where the API server reports a changed uid as invalid: another object has the name now."""
    try:
        yield
    except InvalidError as error:
        if "metadata.uid:" not in error.message:
            raise
        raise ConflictError(error.message, status=error.status, reason=error.reason) from error
