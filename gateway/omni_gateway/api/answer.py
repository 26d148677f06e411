"""Calls an entry stage for the routes: passes on its events, raises gRPC errors as GatewayError, counts the audio."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Unpack

from grpc import StatusCode

from omni_gateway.context import Call, Gateway
from omni_gateway.entries.pipelines import ServedPipeline
from omni_proto.client import ArgumentError, AudioChunk, Event, GenerateArguments, OmniRequestError, Summary, TextDelta
from omni_proto.rpc.options import USER_KEY
from omni_proto.runtime.otlp import exemplar_of

BYTES_PER_SAMPLE: Final = 2
MOST_MISSED: Final = 3
"""How often a request that reached no pod of a pipeline that may sleep is held and sent again."""


async def open_answer(
    gateway: Gateway, call: Call, route: str, pipeline: ServedPipeline, **arguments: Unpack[GenerateArguments]
) -> AsyncGenerator[Event, None]:
    """Calls the entry stage and waits until it accepts the request. Returns the events; the first one is Accepted.

    An error before Accepted can still be sent as an HTTP status. Closing the generator cancels the request in all
    stages. Raises GatewayError, here and while the events are read.
    """
    call.rights.apply(arguments)
    arguments.setdefault("timeout", gateway.settings.request_seconds)
    arguments.setdefault("request_id", call.id)
    arguments.setdefault("traceparent", call.traceparent)
    arguments.setdefault("metadata", ((USER_KEY, gateway.pseudonyms.of(call.key, call.address)),))
    missed = 0
    while True:
        try:
            events = gateway.entries.generate(pipeline, **arguments)
        except ArgumentError as error:
            raise call.explain(error) from error
        try:
            first = await anext(events)
        except OmniRequestError as error:
            if missed == MOST_MISSED or not pipeline.scale_target or error.code is not StatusCode.UNAVAILABLE:
                raise call.explain(error) from error
            # It may have fallen asleep at this moment.
            missed += 1
            await gateway.holds.wait(pipeline, call.holder, missed=True)
        except BaseException:
            await events.aclose()
            raise
        else:
            break
    return _follow(gateway, call, route, pipeline, first, events)


async def _follow(
    gateway: Gateway,
    call: Call,
    route: str,
    pipeline: ServedPipeline,
    first: Event,
    events: AsyncGenerator[Event, None],
) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        try:
            yield first
            async for event in events:
                if isinstance(event, AudioChunk):
                    seconds = len(event.data) / (BYTES_PER_SAMPLE * event.channels * event.sample_rate_hz)
                    call.audio_seconds += seconds
                    gateway.metrics.count_audio(call.model, call.key, seconds)
                elif isinstance(event, Summary):
                    used = tokens_of(event)
                    gateway.metrics.count_tokens(call.model, call.key, used)
                    call.tokens = {kind: call.tokens.get(kind, 0) + count for kind, count in used.items()}
                if isinstance(event, AudioChunk | TextDelta):
                    kind = "audio" if isinstance(event, AudioChunk) else "text"
                    if kind not in call.first_seen:
                        call.first_seen.add(kind)
                        took = time.monotonic() - call.started
                        gateway.metrics.first_byte.labels(route, kind).observe(took, exemplar_of(call.traceparent))
                        call.span.mark(f"first {kind}")
                yield event
        except OmniRequestError as error:
            failure = call.explain(error)
            call.error = failure.specific_code or failure.code or ""
            raise failure from error


def tokens_of(summary: Summary) -> dict[str, int]:
    """Returns the tokens of an answer: of the entry stage's prompt, and the text and codec tokens of all stages."""
    found = {"prompt": 0, "text": 0, "codec": 0}
    for outcome in summary.stages:
        usage = outcome.usage
        found["prompt"] += usage.prompt_tokens if outcome.stage == summary.stage else 0
        found["text"] += usage.completion_tokens - usage.codec_tokens
        found["codec"] += usage.codec_tokens
    return found
