"""The connection to the API server, and requests and their responses as plain JSON.

`kubernetes.aio` reads credentials from kubeconfig files, exec plugins and in-cluster tokens, and refreshes them. Its
typed calls cost twice the CPU of plain JSON, so HTTP is by aiohttp. JSON is decoded by msgspec, because the standard
library's decoder took a quarter of the CPU time. Each call is counted by verb and code, and every failure raises an
error of errors.py.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import msgspec
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from omni_kube.api.timing import ServerClock
from omni_kube.errors import CredentialsError, UnreachableError, api_error
from omni_kube.objects import Manifest

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 90.0
"""How long an idle connection is kept; longer than the pause between two requests of a watch."""


class ApiConnection:
    """Address and credentials of one API server."""

    def __init__(self, configuration: Configuration, caller: str) -> None:
        self._configuration = configuration
        self.caller = caller
        """The caller's identity: its User-Agent, and the name under which it owns fields (server-side apply)."""

    @property
    def server(self) -> str:
        """Base URL of the API server, without a final slash."""
        return str(self._configuration.host).rstrip("/")

    def new_session(self, on_response: Callable[[str, int], None] | None = None) -> aiohttp.ClientSession:
        """Returns a session that adds the credentials to every request.

        on_response is called for every response, with the path and query of the request and the HTTP status.
        """

        async def authenticate(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            # Read again for every request: service account tokens change every hour.
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            if token:
                request.headers["Authorization"] = token
            response = await handler(request)
            if on_response is not None:
                on_response(request.url.path_qs, response.status)
            return response

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=RESTClientObject(self._configuration).ssl_context, limit=0, keepalive_timeout=KEEPALIVE_S
            ),
            headers={"User-Agent": self.caller, "Accept": "application/json"},
            proxy=self._configuration.proxy,
            middlewares=(authenticate,),
            # A watch event may hold an object of several MiB.
            read_bufsize=2**20,
        )


async def load_connection(kubeconfig: Path | None, caller: str) -> ApiConnection:
    """Read the credentials from the given file, else from the pod, else from the default kubeconfig.

    Raises CredentialsError.
    """
    configuration = Configuration()
    try:
        if kubeconfig is not None:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
            )
        elif "KUBERNETES_SERVICE_HOST" in os.environ:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration, persist_config=False
            )
    except (kube_config.ConfigException, OSError) as error:
        raise CredentialsError(f"cannot read the credentials of the API server: {error}") from error
    return ApiConnection(configuration, caller)


async def iter_lines(response: aiohttp.ClientResponse, gather_s: float) -> AsyncIterator[list[bytes]]:
    """Yields the lines of a response, of any length. Lines that arrived together come in one list.

    After each read, nothing more is read until the loop's clock reaches the next multiple of gather_s seconds. So lines
    that arrive one by one are read together, and the lines of all responses are read at the same time. This saves CPU
    time: waking up for a line costs more than processing it.
    """
    parts: list[bytes] = []
    async for data in response.content.iter_any():
        *complete, rest = data.split(b"\n")
        if complete:
            yield [b"".join([*parts, complete[0]]), *complete[1:]]
            parts = []
        if rest:
            parts.append(rest)
        await _let_gather(response, gather_s)


async def _let_gather(response: aiohttp.ClientResponse, gather_s: float) -> None:
    transport = response.connection.transport if response.connection is not None else None
    # If the transport does not read, aiohttp has paused it, because the response's buffer is full.
    if transport is None or transport.is_closing() or not transport.is_reading():
        return
    transport.pause_reading()
    try:
        await asyncio.sleep(gather_s - asyncio.get_running_loop().time() % gather_s)
    finally:
        if not transport.is_closing():
            transport.resume_reading()


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

    def __init__(self, connection: ApiConnection, metrics: CallMetrics) -> None:
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
                self.clock.update(response.headers.get("Date", ""), time.monotonic())
                counted = True
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            slow = isinstance(error, TimeoutError)
            if not counted:
                self._metrics.count_call(verb, "timeout" if slow else "unreachable", time.monotonic() - began)
            what = "no answer in time" if slow else f"{type(error).__name__}: {error}"
            raise UnreachableError(what, reason=TIMEOUT if slow else "Unreachable", call=f"{verb} {path}") from error
