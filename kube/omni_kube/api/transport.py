"""Requests to the API server and their responses as plain JSON. Every failure raises an error of errors.py.

JSON is decoded by msgspec, because the standard library's decoder took a quarter of the CPU time. Each call is counted
by verb and code.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from omni_kube.api.clock import ServerClock
from omni_kube.api.connection import CONNECT_TIMEOUT_S, Connection
from omni_kube.errors import UnreachableError, api_error
from omni_kube.objects import Manifest

REQUEST_TIMEOUT_S: Final = 15.0
"""Timeout of a call that is neither a watch nor a list."""
TIMEOUT: Final = "Timeout"
"""Marks the UnreachableError of a call that timed out. Such a call is not retried immediately."""
JSON: Final = "application/json"

_Answer = TypeVar("_Answer")


class CallMetrics(Protocol):
    """Counts calls."""

    def count_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call by its RBAC verb and its outcome.

        code is the HTTP status, "timeout" or "unreachable". seconds is the time until the outcome was known.
        """


class Transport:
    """One session with the API server. Methods raise ApiError subclasses."""

    def __init__(self, connection: Connection, metrics: CallMetrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None
        self.caller = connection.caller
        """Field manager: the name under which fields are owned."""
        self.clock = ServerClock()
        """The API server's clock."""

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(self, verb: str, method: str, path: str, **arguments: Any) -> Manifest:
        """Returns the response to a request as JSON. Takes the same arguments as `read`."""
        document: Manifest = await self.read(msgspec.json.decode, verb, method, path, **arguments)
        return document

    async def read(
        self,
        decode: Callable[[bytes], _Answer],
        verb: str,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> _Answer:
        """Returns the response's body, decoded by `decode`.

        If decode raises ValueError, the response did not come from an API server, and UnreachableError is raised.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if data is not None else {})
        async with self.request(
            verb, method, path, params=params, data=data, headers=headers, timeout=timeout
        ) as response:
            content = await response.read()
            if response.status >= 300:
                raise api_error(response.status, content, response.headers.get("Retry-After"), f"{verb} {path}")
            return decode(content)

    @asynccontextmanager
    async def request(
        self, verb: str, method: str, path: str, **arguments: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields a response of any status, open so that its body can be read. arguments are passed to aiohttp."""
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
