"""Connections to entry stages, and their cached descriptions (GetStage)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Unpack

import grpc

from omni_gateway.entries.pipelines import ServedPipeline, file_times, pick_voice
from omni_gateway.errors import ModelNotReadyError, UnavailableError, to_error
from omni_proto.client import ArgumentError, AsyncOmniClient, ClientTls, Event, GenerateArguments, OmniRequestError
from omni_proto.rpc.options import Options, channel_options
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse

log = logging.getLogger(__name__)
FACTS_S: Final = 30.0
"""How long an answer of GetStage is cached, in seconds."""
DESCRIBE_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.2
"""Pause before another call to an entry stage that could not be reached."""
AHEAD_BYTES: Final = 64 << 10
"""Maximum bytes of an answer that gRPC reads ahead. The 4 MiB of channel_options are meant for tensors; here they would
be held for each client that stalls. gRPC's bdp_probe is off, because it would raise this limit on fast connections."""
_Key = tuple[str, ClientTls | None, tuple[int, ...]]
"""Endpoint, its TLS settings, and the modification times of the TLS files."""


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry stage's description of itself and of its pipeline."""

    stage: str
    """Name of the entry stage."""
    stages: tuple[str, ...]
    modalities: tuple[str, ...]
    """The modalities that the pipeline returns: "text", "audio" or both."""
    voices: tuple[str, ...]
    """Names of the voices, the default first; empty if the pipeline does not speak."""
    max_model_len: int
    speaks_given_text: bool
    """Whether a request may give the text to speak."""
    structures_text: bool
    """Whether a request may set the form of the text (structured output)."""
    calls_tools: bool
    """Whether a request may offer tools."""
    answering: str = ""
    """Name of the stage whose text is the answer; empty if no stage returns text."""
    has_transcript: bool = False
    """Whether the entry stage returns what it heard beside the answer."""
    hears: bool = False
    """Whether a request may hold audio."""
    transcribes: bool = False
    """Whether the entry stage writes the words that it hears, whatever the prompt says."""
    times_words: bool = False
    """Whether the entry stage can state when the words were spoken."""
    max_media: int = 0
    """Maximum number of media in a request; 0 if the stage does not say."""
    random_weights: bool = False
    """Whether the checkpoint is a tiny one with random weights, whose answers mean nothing."""

    def pick_voice(self, wanted: str, aliases: Mapping[str, str], *, param: str) -> str:
        """Returns the pipeline's name of a voice; see pipelines.pick_voice. If the voices of the stages below the entry
        are not known, the stage that speaks checks the name. Raises InvalidRequestError."""
        if not self.voices and len(self.stages) > 1:
            return aliases.get(wanted, wanted)
        return pick_voice(wanted, self.voices, aliases, param=param)

    @property
    def reads_aloud(self) -> bool:
        """Whether the pipeline is a model of /v1/audio/speech."""
        return "audio" in self.modalities and self.speaks_given_text


def read_facts(answer: GetStageResponse, pipeline: ServedPipeline) -> EntryFacts:
    """Returns the facts from the stage's answer. Modalities and voices that `pipeline` sets take precedence."""
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
        answering=answer.answering_stage or (answer.stage if "text" in outputs else ""),
        has_transcript=sampling_pb2.MODALITY_TRANSCRIPT in answer.outputs,
        hears="audio" in answer.media,
        transcribes=answer.text.transcribes,
        times_words=answer.text.times_words,
        max_media=answer.limits.max_media_per_request,
        random_weights=answer.random_weights,
    )


class Entries:
    """One client for each entry stage in use. Use from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, request_s: float = 300.0) -> None:
        """request_s: longest duration of a request in seconds. After a renewal of certificates, the old connection is
        kept for at least this time."""
        self._clock = clock
        self._request_s = request_s
        self._retired: list[tuple[float, AsyncOmniClient]] = []
        self._clients: dict[_Key, AsyncOmniClient] = {}
        self._closing: list[asyncio.Future[None]] = []
        self._facts: dict[_Key, tuple[float, GetStageResponse]] = {}
        self._unusable: set[_Key] = set()

    async def facts(self, pipeline: ServedPipeline) -> EntryFacts:
        """Returns the entry stage's description, at most FACTS_S seconds old, or older while the stage is unreachable.

        Raises GatewayError.
        """
        key = _key(pipeline)
        known = self._facts.get(key)
        if pipeline.is_away:
            if known is None:
                raise ModelNotReadyError(f"The model {pipeline.id!r} sleeps, and was not described before it did.")
            return read_facts(known[1], pipeline)
        if known is None or self._clock() - known[0] > FACTS_S:
            try:
                known = self._facts[key] = (self._clock(), await self._describe(pipeline))
            except OmniRequestError as error:
                # The request continues with an older description. Its call has its own retries and reports the problem.
                if known is None or error.code is not grpc.StatusCode.UNAVAILABLE:
                    raise to_error(error, pipeline=pipeline.name) from error
        return read_facts(known[1], pipeline)

    async def probe(self, pipeline: ServedPipeline) -> None:
        """Ask the entry stage for its description, however young the known one is. Raises GatewayError."""
        try:
            self._facts[_key(pipeline)] = (self._clock(), await self._describe(pipeline))
        except OmniRequestError as error:
            raise to_error(error, pipeline=pipeline.name) from error

    def generate(self, pipeline: ServedPipeline, **arguments: Unpack[GenerateArguments]) -> AsyncGenerator[Event, None]:
        """Returns the events of a request; see AsyncOmniClient.generate.

        Raises ArgumentError, UnavailableError; the returned generator raises OmniRequestError.
        """
        return self._client(pipeline).generate(**arguments)

    async def close(self) -> None:
        """Close every connection."""
        clients, self._clients = list(self._clients.values()), {}
        clients += [client for _, client in self._retired]
        await asyncio.gather(*(client.close() for client in clients))

    async def _describe(self, pipeline: ServedPipeline) -> GetStageResponse:
        """Returns the entry stage's answer to GetStage; a second call follows if the first reaches no pod.

        After a rollout a channel may know only pods that no longer exist. The client then replaces it, and the second
        call uses the new channel, which resolves the name again. Raises OmniRequestError.
        """
        client = self._client(pipeline)
        try:
            return await client.get_stage(timeout=DESCRIBE_TIMEOUT_S)
        except OmniRequestError as error:
            if error.code is not grpc.StatusCode.UNAVAILABLE:
                raise
        await asyncio.sleep(RETRY_S)
        return await client.get_stage(timeout=DESCRIBE_TIMEOUT_S)

    def _client(self, pipeline: ServedPipeline) -> AsyncOmniClient:
        key = _key(pipeline)
        client = self._clients.get(key)
        if client is None and key in self._unusable:
            client = self._older_client(key)
        if client is None:
            try:
                client = AsyncOmniClient(pipeline.endpoint, tls=pipeline.tls, options=entry_options())
            except ArgumentError as error:
                return self._do_without(key, error)
            self._clients[key] = client
            self._retire(key)
        return client

    def _do_without(self, key: _Key, error: ArgumentError) -> AsyncOmniClient:
        """Returns the client with older TLS files, because the new ones cannot be used. Raises UnavailableError."""
        if key not in self._unusable:
            self._unusable.add(key)
            log.error("the TLS files of an entry stage cannot be used", extra={"entry": key[0], "reason": str(error)})
        older = self._older_client(key)
        if older is None:
            raise UnavailableError("The gateway's TLS files cannot be used; its log says why.") from error
        return older

    def _older_client(self, key: _Key) -> AsyncOmniClient | None:
        return next((client for old, client in self._clients.items() if old[:2] == key[:2]), None)

    def _retire(self, key: _Key) -> None:
        """Retire the client that had older TLS files. Close clients that were retired more than request_s ago."""
        now = self._clock()
        self._unusable = {old for old in self._unusable if old[:2] != key[:2]}
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
