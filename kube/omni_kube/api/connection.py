"""The connection to the API server: address, certificates and tokens from the official client, HTTP by aiohttp.

`kubernetes.aio` reads credentials from kubeconfig files, exec plugins and in-cluster tokens, and refreshes them. Its
typed calls cost twice the CPU of plain JSON, so `transport.py` makes the calls itself. kopf gets a session of the same
kind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from omni_kube.errors import CredentialsError

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 90.0
"""How long an idle connection is kept; longer than the pause between two requests of a watch."""


class Connection:
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


async def load_connection(kubeconfig: Path | None, caller: str) -> Connection:
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
    return Connection(configuration, caller)


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
