"""Connections to entry stages, and what those stages say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Unpack

from omni_gateway.errors import to_error
from omni_gateway.pipelines import ServedPipeline
from omni_proto.client import ArgumentError, AsyncOmniClient, ClientTls, Event, GenerateArguments, OmniRequestError
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse

FACTS_S: Final = 30.0
"""How long the answer of GetStage is believed."""
DESCRIBE_TIMEOUT_S: Final = 5.0

_Key = tuple[str, ClientTls | None]


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What an entry stage says of itself and of its pipeline."""

    stage: str
    """Name of the entry stage."""
    stages: tuple[str, ...]
    modalities: tuple[str, ...]
    """"text" and "audio", as far as the pipeline returns them."""
    voices: tuple[str, ...]
    """The default first; empty if nothing speaks."""
    max_model_len: int
    speaks_given_text: bool
    """Whether a reply can be given, to be spoken as it stands."""
    structures_text: bool
    """Whether the form of the text can be asked for."""
    calls_tools: bool
    """Whether tools can be offered."""


def read_facts(answer: GetStageResponse, pipeline: ServedPipeline) -> EntryFacts:
    """Returns what the answer and the pipeline's own description say; the description has the last word."""
    outputs = tuple(
        name
        for value, name in ((sampling_pb2.MODALITY_TEXT, "text"), (sampling_pb2.MODALITY_AUDIO, "audio"))
        if value in (answer.pipeline_outputs or answer.outputs)
    )
    return EntryFacts(
        stage=answer.stage,
        stages=tuple(answer.stages),
        modalities=pipeline.modalities or outputs,
        voices=pipeline.voices or tuple(answer.voices),
        max_model_len=answer.limits.max_model_len,
        speaks_given_text=answer.text.given_reply,
        structures_text=answer.text.structured_output,
        calls_tools=bool(answer.text.tool_call_parser),
    )


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
