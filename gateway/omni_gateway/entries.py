"""Connections to entry stages, and the stages' descriptions of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Unpack

import grpc

from omni_gateway.entry_facts import EntryFacts, read_facts
from omni_gateway.entry_tls import file_times
from omni_gateway.errors import to_error
from omni_gateway.pipelines import ServedPipeline
from omni_proto.client import ArgumentError, AsyncOmniClient, ClientTls, Event, GenerateArguments, OmniRequestError
from omni_proto.rpc.options import Options, channel_options
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse

FACTS_S: Final = 30.0
"""How long an answer of GetStage is used."""
DESCRIBE_TIMEOUT_S: Final = 5.0
AGAIN_S: Final = 0.2
"""Pause before another call to an entry stage that could not be reached."""

AHEAD_BYTES: Final = 64 << 10
"""Read of an answer before it is taken. A channel's own 4 MiB, for tensors, would be held for each reader that stalls;
and gRPC, left to itself, raises the bound with the speed of the connection."""

_Key = tuple[str, ClientTls | None, tuple[int, ...]]
"""Endpoint, how to connect to it, and when the files that say so were written."""


class Entries:
    """One client for each entry stage in use. Use from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, request_s: float = 300.0) -> None:
        """request_s: the longest request; so long a connection is kept whose certificates were renewed."""
        self._clock = clock
        self._request_s = request_s
        self._retired: list[tuple[float, AsyncOmniClient]] = []
        self._clients: dict[_Key, AsyncOmniClient] = {}
        self._closing: list[asyncio.Future[None]] = []
        self._facts: dict[_Key, tuple[float, GetStageResponse]] = {}

    async def facts(self, pipeline: ServedPipeline) -> EntryFacts:
        """Returns what the entry stage says, at most FACTS_S old; older while it cannot be reached.

        Raises GatewayError.
        """
        key = _key(pipeline)
        known = self._facts.get(key)
        if known is None or self._clock() - known[0] > FACTS_S:
            try:
                known = self._facts[key] = (self._clock(), await self._describe(pipeline))
            except OmniRequestError as error:
                # The request itself continues, with its own retries, and reports what is wrong.
                if known is None or error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise to_error(error) from error
        return read_facts(known[1], pipeline)

    def generate(self, pipeline: ServedPipeline, **arguments: Unpack[GenerateArguments]) -> AsyncGenerator[Event, None]:
        """Runs a request as AsyncOmniClient.generate does. Raises InvalidRequestError; OmniRequestError later."""
        try:
            return self._client(pipeline).generate(**arguments)
        except ArgumentError as error:
            raise to_error(error) from error

    async def close(self) -> None:
        """Close every connection."""
        clients, self._clients = list(self._clients.values()), {}
        clients += [client for _, client in self._retired]
        await asyncio.gather(*(client.close() for client in clients))

    async def _describe(self, pipeline: ServedPipeline) -> GetStageResponse:
        """Call the entry stage; a second time if the first call reaches no pod. Raises OmniRequestError.

        After a rollout a connection may know only pods that are gone. The second call uses a new connection, which
        resolves the name again.
        """
        client = self._client(pipeline)
        try:
            return await client.get_stage(timeout=DESCRIBE_TIMEOUT_S)
        except OmniRequestError as error:
            if error.code is not grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(AGAIN_S)
        return await client.get_stage(timeout=DESCRIBE_TIMEOUT_S)

    def _client(self, pipeline: ServedPipeline) -> AsyncOmniClient:
        key = _key(pipeline)
        client = self._clients.get(key)
        if client is None:
            try:
                client = self._clients[key] = AsyncOmniClient(
                    pipeline.endpoint, tls=pipeline.tls, options=entry_options()
                )
            except ArgumentError as error:
                raise to_error(error) from error
            self._retire(key)
        return client

    def _retire(self, key: _Key) -> None:
        """Forget the client that a new one replaces; requests that it carries end first."""
        now = self._clock()
        for old in [old for old in self._clients if old[:2] == key[:2] and old != key]:
            self._retired.append((now, self._clients.pop(old)))
            self._facts.pop(old, None)
        ended = [client for at, client in self._retired if now - at > self._request_s]
        self._retired = [(at, client) for at, client in self._retired if now - at <= self._request_s]
        for client in ended:
            self._closing.append(asyncio.ensure_future(client.close()))
        self._closing = [task for task in self._closing if not task.done()]


def entry_options() -> Options:
    """Returns the options of a channel to an entry stage."""
    own = {"grpc.http2.lookahead_bytes": AHEAD_BYTES, "grpc.http2.bdp_probe": 0}
    return (*((name, value) for name, value in channel_options() if name not in own), *own.items())


def _key(pipeline: ServedPipeline) -> _Key:
    return (pipeline.endpoint, pipeline.tls, file_times(pipeline.tls))
