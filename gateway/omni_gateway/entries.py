"""Connections to entry stages, and what those stages say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, Unpack

from omni_gateway.entry_facts import EntryFacts, read_facts
from omni_gateway.errors import to_error
from omni_gateway.pipelines import ServedPipeline
from omni_proto.client import ArgumentError, AsyncOmniClient, ClientTls, Event, GenerateArguments, OmniRequestError
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse

FACTS_S: Final = 30.0
"""How long the answer of GetStage is believed."""
DESCRIBE_TIMEOUT_S: Final = 5.0

_Key = tuple[str, ClientTls | None]


class Entries:
    """One client for each entry stage in use. Use from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[_Key, AsyncOmniClient] = {}
        self._facts: dict[_Key, tuple[float, GetStageResponse]] = {}

    async def facts(self, pipeline: ServedPipeline) -> EntryFacts:
        """Returns what the entry stage says, at most FACTS_S old. Raises GatewayError."""
        key = _key(pipeline)
        known = self._facts.get(key)
        if known is None or self._clock() - known[0] > FACTS_S:
            try:
                answer = await self._client(pipeline).get_stage(timeout=DESCRIBE_TIMEOUT_S)
            except OmniRequestError as error:
                raise to_error(error) from error
            known = self._facts[key] = (self._clock(), answer)
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
        await asyncio.gather(*(client.close() for client in clients))

    def _client(self, pipeline: ServedPipeline) -> AsyncOmniClient:
        key = _key(pipeline)
        client = self._clients.get(key)
        if client is None:
            try:
                client = self._clients[key] = AsyncOmniClient(pipeline.endpoint, tls=pipeline.tls)
            except ArgumentError as error:
                raise to_error(error) from error
        return client


def _key(pipeline: ServedPipeline) -> _Key:
    return (pipeline.endpoint, pipeline.tls)
